"""Kills runs at random moments, hundreds of times, and compares what they end with: `make soak`.

Each round runs a job, a changed input of it, and the first one again in one folder, with a fake
engine. Processes are forked from this one, killed with SIGKILL, and started again until they end by
themselves: the outputs must be those of an unbroken run, each answer computed once. Some kills are
aimed at the moments when answers move to other rows and when outputs are written.
"""

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from blendrun.data.manifest import read_manifest
from blendrun.data.results import PARTS, files_of, keys_of, read_part
from soak.fake_engine import install, make_model
from tiny_jobs import execute, plan_job

STAGES = ("renumber", "outputs")
HANGS_S = 300.0
SETTINGS = {"flush_interval_s": 0.05, "unfinished_interval_s": 0.1, "max_seqs": 48}


def job_rows(num_rows: int, rng: random.Random) -> list[dict[str, Any]]:
    """Requests of every kind, some equal, some that cannot run."""
    heads = [[rng.randrange(3, 300) for _ in range(20)] for _ in range(5)]
    rows: list[dict[str, Any]] = []
    while len(rows) < num_rows:
        own = [rng.randrange(3, 300) for _ in range(rng.randint(1, 6))]
        row = {"prompt_token_ids": [*rng.choice(heads), *own], "max_tokens": rng.randint(1, 24)}
        kind = rng.random()
        if kind < 0.4:
            row |= {"temperature": 1.0, "n": rng.choice([1, 1, 1, 3])}
        elif kind < 0.45:
            row["prompt_token_ids"] = [10**6]
        elif kind < 0.5:
            row["max_tokens"] = 0
        rows += [dict(row) for _ in range(rng.choice([1, 1, 1, 2]))]
    return [{"id": i, **row} for i, row in enumerate(rows[:num_rows])]


def changed_rows(rows: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Shuffled, with rows taken away, changed and added."""
    kept = rng.sample(rows, len(rows) * 3 // 4)
    for row in rng.sample(range(len(kept)), len(kept) // 8):
        kept[row] = {**kept[row], "max_tokens": 25}
    return rng.sample([*kept, *job_rows(len(rows) // 4, rng)], len(kept) + len(rows) // 4)


class Child:
    """A forked process that executes a plan and tells of the stages it passes."""

    def __init__(self, plan: Path, run_dir: Path) -> None:
        self._heard, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._execute(plan, run_dir, told)
        os.close(told)

    def _execute(self, plan: Path, run_dir: Path, told: int) -> None:
        def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                os.write(told, name[:1].encode())
                made = real(*args)
                os.write(told, name[:1].upper().encode())
                return made

            return call

        try:
            install(watch)
            execute(plan, run_dir, **SETTINGS)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def wait_for(self, letter: str, seconds: float) -> bool:
        """Whether the child says `letter`; False where it ends or the time is over before."""
        end = time.monotonic() + seconds
        while select.select([self._heard], [], [], max(end - time.monotonic(), 0.0))[0]:
            said = os.read(self._heard, 1).decode()
            if said in (letter, ""):
                return said == letter
        return False

    def kill(self) -> bool:
        """Whether it was alive until now. Raises ChildProcessError where it had failed."""
        os.kill(self.pid, signal.SIGKILL)
        return self.join()

    def join(self) -> bool:
        """Whether it was killed. Raises ChildProcessError where it failed."""
        os.close(self._heard)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if status not in (0, -signal.SIGKILL):
            raise ChildProcessError(f"a run ended with {status}")
        return status != 0


@dataclass
class Job:
    """A plan, the outputs of an unbroken run of it, and how long its stages take."""

    plan: Path
    job_id: str
    expected: Any = None
    whole_s: float = 0.0
    stage_s: dict[str, float] = field(default_factory=dict)


def outputs(run_dir: Path) -> Any:
    return pq.read_table(run_dir / "outputs.parquet").drop_columns("num_cached_tokens")


class Soak:
    def __init__(self, folder: Path, num_rows: int, seed: int) -> None:
        self._folder, self._rng = folder, random.Random(seed)
        self.kills: Counter[str] = Counter()
        rows = job_rows(num_rows, self._rng)
        model = make_model(folder / "model")
        self._first = self._job("first", rows, model, None)
        inputs = [changed_rows(rows, self._rng) for _ in range(2)]
        self._changed = [
            self._job(f"changed-{i}", inputs[i], model, window)
            for i, window in enumerate([None, num_rows // 3])
        ]
        install(lambda _, real: real)
        execute(self._first.plan, folder / "warm", **SETTINGS)  # what is compiled, all share
        moves = folder / "moves"
        for job in (self._first, *self._changed, self._first):
            if job.expected is None:
                self._measure(job, folder / f"{job.plan.parent.name}-alone", STAGES[1:])
            if job is not self._first or moves.exists():
                self._measure(job, moves, STAGES)
            else:
                self._end(job, moves)

    def _job(self, name: str, rows: list[dict[str, Any]], model: Path, window: int | None) -> Job:
        path, plan = plan_job(self._folder / name, rows, model, window=window)
        return Job(path, plan.job_id)

    def _measure(self, job: Job, run_dir: Path, stages: Sequence[str]) -> None:
        begin, child = time.monotonic(), Child(job.plan, run_dir)
        for stage in stages:
            child.wait_for(stage[0], HANGS_S)
            entered = time.monotonic()
            child.wait_for(stage[0].upper(), HANGS_S)
            job.stage_s[stage] = time.monotonic() - entered
        child.join()
        if job.expected is None:
            job.whole_s, job.expected = time.monotonic() - begin, outputs(run_dir)
        self._check(job, run_dir)

    def _end(self, job: Job, run_dir: Path) -> None:
        Child(job.plan, run_dir).join()
        self._check(job, run_dir)

    def rounds(self, num_kills: int) -> Iterator[int]:
        """Kill until it is enough; yields the number of kills after each round."""
        number = 0
        while self.kills.total() < num_kills:
            run_dir = self._folder / f"round-{number}"
            for job in (self._first, self._changed[number % 2], self._first):
                while self.kills.total() < num_kills and self._kill(job, run_dir):
                    pass
                self._end(job, run_dir)
            number += 1
            yield self.kills.total()

    def _kill(self, job: Job, run_dir: Path) -> bool:
        """Start the job and kill it; False if it ended before."""
        manifest = read_manifest(run_dir)
        moves = manifest is not None and manifest.identity["job_id"] != job.job_id
        often = "renumber" if moves else "any"
        moment = self._rng.choice([often, often, often, "any", "outputs"])
        child = Child(job.plan, run_dir)
        if moment == "any":
            child.wait_for("", self._rng.uniform(0, job.whole_s / 4))
        elif child.wait_for(moment[0], HANGS_S):
            child.wait_for(moment[0].upper(), self._rng.uniform(0, job.stage_s[moment]))
        killed = child.kill()
        if killed:
            self.kills[moment] += 1
        return killed

    def _check(self, job: Job, run_dir: Path) -> None:
        """Raises AssertionError where the run did not end as an unbroken one."""
        made = outputs(run_dir)
        if not made.equals(job.expected):
            raise AssertionError(f"{run_dir}: the outputs differ from those of an unbroken run")
        parts = [read_part(path, ["row", "output_index"]) for path in files_of(run_dir, PARTS)]
        keys = np.concatenate([keys_of(part) for part in parts])
        if len(np.unique(keys)) != len(keys):
            raise AssertionError(f"{run_dir}: an answer was computed twice")
        left = [path.name for path in run_dir.rglob("*") if ".tmp" in path.name]
        if left or (run_dir / "renumbered").exists() or (run_dir / "unfinished.parquet").exists():
            raise AssertionError(f"{run_dir}: something is left over: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), chosen.rows, chosen.seed)
        for kills in soak.rounds(chosen.kills):
            print(f"{kills} kills", file=sys.stderr, flush=True)
    print(
        f"{soak.kills.total()} kills ({soak.kills['renumber']} while answers moved to other rows, "
        f"{soak.kills['outputs']} while outputs were written): every run ended as an unbroken one"
    )


if __name__ == "__main__":
    main()
