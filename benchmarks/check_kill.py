"""Does a run that is killed again and again end as one that was left alone?

    python benchmarks/check_kill.py PROMPTS... [--model M] [--kills 5] [--rows N] [--seed S]

Runs a greedy float32 job unbroken, then once more with SIGKILL at random moments after new results
appeared (`--startup-kills` more while it starts), each time started again with the same command.
Every row must be there once and in order, no finished row may be computed again, and the tokens
must be those of the unbroken run, but for near-ties (see check_tokens.py). Exit code 1 if not.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from peers.cli import ERROR_ROWS, OK, Cli, output_tokens
from peers.job import TokenJob, demo_model, demo_prompts, pick_rows, read_prompts, write_rows
from peers.reference import Reference

from blendrun.data.answers import PLAIN_OUTPUT_COLUMNS
from blendrun.data.model_files import ModelFiles, resolve_model

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Part:
    """A part file of a run as it was at one moment."""

    rows: tuple[int, ...]
    mtime_ns: int
    size: int


def read_parts(run_dir: Path) -> dict[str, Part]:
    """Parts by file name."""
    parts = {}
    for path in sorted((run_dir / "parts").glob("part-*.parquet")):
        rows = pq.ParquetFile(path).read(["row"])["row"].to_pylist()
        stat = path.stat()
        parts[path.name] = Part(tuple(rows), stat.st_mtime_ns, stat.st_size)
    return parts


@dataclass(frozen=True, slots=True)
class Pace:
    """What the unbroken run took, which says how long to wait before a kill."""

    startup_s: float
    generate_s: float
    num_rows: int

    def until_kill(self, done_rows: int, kills_left: int, rng: random.Random) -> float:
        """Seconds after new results; leaves time for the other kills and for the end."""
        left_s = self.generate_s * (self.num_rows - done_rows) / self.num_rows
        return rng.uniform(0.0, left_s / (kills_left + 2))


class KilledRun:
    """A run that is killed, and the parts that each attempt found when it began."""

    def __init__(self, cli: Cli, plan: Path, run_dir: Path, pace: Pace, rng: random.Random) -> None:
        self._cli, self._plan, self._pace, self._rng = cli, plan, pace, rng
        self._run_dir = run_dir
        self.found: list[dict[str, Part]] = []  # by attempt
        self.num_kills = 0

    def run(self, num_kills: int, startup_kills: int) -> int:
        """Kill and start again until it ends by itself; its exit code."""
        moments = ["startup"] * startup_kills + ["results"] * num_kills
        self._rng.shuffle(moments)
        while True:
            self.found.append(read_parts(self._run_dir))
            process = self._start()
            begin = time.monotonic()
            if moments:
                wait_s = self._wait_s(process, moments.pop(), len(moments))
                if self._kill(process, wait_s, time.monotonic() - begin):
                    continue
            return process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return self._cli.start(
            "execute", str(self._plan), "--run-dir", str(self._run_dir), "--dtype", "float32"
        )

    def _wait_s(self, process: subprocess.Popen[bytes], moment: str, kills_left: int) -> float:
        """How long to wait now; where new results are awaited, returns once they are there."""
        if moment == "startup":
            return self._rng.uniform(0.0, self._pace.startup_s)
        before = len(self.found[-1])
        while process.poll() is None and _num_parts(self._run_dir) == before:
            time.sleep(_POLL_S)
        done = sum(len(part.rows) for part in read_parts(self._run_dir).values())
        return self._pace.until_kill(done, kills_left, self._rng)

    def _kill(self, process: subprocess.Popen[bytes], wait_s: float, waited_s: float) -> bool:
        """Kill after `wait_s`; False if the run ended before."""
        try:
            process.wait(wait_s)
            return False
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.num_kills += 1
        parts = read_parts(self._run_dir)
        rows = sum(len(part.rows) for part in parts.values())
        print(f"kill {self.num_kills}: {waited_s + wait_s:.1f} s after the start, "
              f"{rows} of {self._pace.num_rows} rows finished in {len(parts)} parts",
              flush=True)  # fmt: skip
        return True


def _num_parts(run_dir: Path) -> int:
    return sum(1 for _ in (run_dir / "parts").glob("part-*.parquet"))


def check_parts(found: list[dict[str, Part]], final: dict[str, Part]) -> list[str]:
    """Is each row in one part, and does every part last as it was?"""
    problems = []
    rows = [row for part in final.values() for row in part.rows]
    if len(rows) != len(set(rows)):
        twice = sorted({row for row in rows if rows.count(row) > 1})
        problems.append(f"rows computed more than once: {twice}")
    for attempt, parts in enumerate(found, start=1):
        changed = [name for name, part in parts.items() if final.get(name) != part]
        if changed:
            problems.append(f"parts of before attempt {attempt} changed: {changed}")
        finished = {row for part in parts.values() for row in part.rows}
        later = {row for name, part in final.items() if name not in parts for row in part.rows}
        if finished & later:
            again = sorted(finished & later)
            problems.append(f"rows finished before attempt {attempt} computed again: {again}")
    return problems


def check_outputs(prompts: Path, run_dir: Path, final: dict[str, Part]) -> list[str]:
    """Is every input row there once, in order, with its columns, and is it what a part says?"""
    given, out = pq.read_table(prompts), pq.read_table(run_dir / "outputs.parquet")
    problems = []
    if out.column_names != [*given.column_names, *PLAIN_OUTPUT_COLUMNS]:
        problems.append(f"columns are {out.column_names}")
    elif not out.select(given.column_names).equals(given):
        problems.append("the original columns are not those of the input, row for row")
    in_parts = {row for part in final.values() for row in part.rows}
    answered = {i for i, status in enumerate(out["status"].to_pylist()) if status == "ok"}
    if answered - in_parts:
        problems.append(f"answers that are in no part: {sorted(answered - in_parts)}")
    return problems


def compare_runs(
    job: TokenJob, files: ModelFiles, unbroken: Path, killed: Path, threads: int | None
) -> list[str]:
    """What differs between two runs, but for near-ties; prints how many rows are equal."""
    right, tested = output_tokens(unbroken), output_tokens(killed)
    prompts = dict(zip(job.rows, job.prompts, strict=True))
    different = [row for row in right if right[row] != tested.get(row)]
    reference = Reference(files, None, threads) if different else None
    problems, num_ties = [], 0
    for row in different:
        a, b = tested.get(row), right[row]
        if reference is None or not a or not b:
            problems.append(f"row {row} has an answer in one run only")
            continue
        found = reference.compare(prompts[row], a, b)
        num_ties += found.is_tie
        if not found.is_tie:
            problems.append(f"row {row}: {found}")
    errors = sum(tokens is None for tokens in right.values())
    print(f"answers: {len(right) - len(different)} equal ({errors} of them error rows), "
          f"{num_ties} near-ties, {len(problems)} wrong")  # fmt: skip
    return problems


def unbroken_pace(cli: Cli, plan: Path, run_dir: Path, num_rows: int) -> Pace:
    """Run a plan to its end without a kill."""
    begin = time.monotonic()
    report = cli.execute(plan, run_dir, "--dtype", "float32")
    print(f"unbroken: {num_rows} rows in {report['generate_s']:.1f} s "
          f"and {report['load_s']:.1f} s of loading", flush=True)  # fmt: skip
    elapsed_s = time.monotonic() - begin
    return Pace(max(elapsed_s - report["generate_s"], 0.0), report["generate_s"], num_rows)


def check(options: argparse.Namespace, work: Path) -> list[str]:
    """Both runs; what is wrong."""
    files, cli = resolve_model(options.model or demo_model()), Cli(options.threads)
    table, prompts = read_prompts(options.prompts or demo_prompts()), work / "prompts.parquet"
    rows = pick_rows(table, options.rows or table.num_rows)
    write_rows(table, rows, options.max_tokens_cap, prompts)
    plan = cli.plan([str(prompts)], files.spec, work / "plan.json")
    unbroken, killed = work / "unbroken", work / "killed"
    job = TokenJob.of_plan(plan)
    pace = unbroken_pace(cli, plan, unbroken, len(job.rows))
    run = KilledRun(cli, plan, killed, pace, random.Random(options.seed))
    exit_code = run.run(options.kills, options.startup_kills)
    if exit_code not in (OK, ERROR_ROWS):
        return [f"the last attempt ended with exit code {exit_code}"]
    problems = []
    if run.num_kills < options.kills + options.startup_kills:
        problems.append(f"only {run.num_kills} kills happened before the end: give more rows")
    final = read_parts(killed)
    attempts = len(json.loads((killed / "manifest.json").read_text())["attempts"])
    print(f"killed {run.num_kills} times: {len(final)} parts, {attempts} attempts recorded")
    problems += check_parts(run.found, final) + check_outputs(prompts, killed, final)
    return problems + compare_runs(job, files, unbroken, killed, options.threads)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prompts", nargs="*", help="Parquet or JSONL; default: sample_data")
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--startup-kills", type=int, default=1)
    parser.add_argument("--rows", type=int, help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens-cap", type=int, help="shorter answers, for a quick run")
    return parser.parse_args()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        problems = check(parse(), Path(folder))
    print(*problems, "WRONG" if problems else "all right", sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
