"""Does memory grow with the number of rows? Two jobs of rows of 1 kB, one with ten times the rows.

    python benchmarks/bench_memory.py [--rows 20000 200000] [--window N]

Plans and executes each job with a tiny random model whose products are left out: every answer is
one made-up token, so only what reads, plans, schedules and writes takes memory. Prints the peak of
each command (anonymous memory of its process: files that are mapped, as the token store is, do not
count), and what a row of the larger job costs beyond one of the smaller.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

_POLL_S = 0.02
_WORDS = np.array(["the", "of", "answer", "model", "fox", "42", "quick", "brown", "lazy", "dog"])
_CONTEXT_LEN = 4096


@dataclass(frozen=True, slots=True)
class Peak:
    """What one command took."""

    name: str
    rows: int
    bytes: int
    results_while_running: int  # files of results that were there before it ended
    seconds: float


def write_job(path: Path, num_rows: int, seed: int = 0) -> None:
    """JSON lines of 1 kB each; every prompt is another."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_rows):
            words = " ".join(_WORDS[rng.integers(0, len(_WORDS), 260)].tolist())
            prompt = f"{number} {words}"[:900]
            file.write(json.dumps({"id": number, "prompt": prompt, "note": "n" * 60}) + "\n")


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is no file's; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def watch(name: str, rows: int, words: list[str], run_dir: Path) -> Peak:
    """Run blendrun to its end and look at it meanwhile."""
    begin, peak, files = time.monotonic(), 0, 0
    process = subprocess.Popen([sys.executable, __file__, "--child", *words], stdout=sys.stderr)
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        if not (run_dir / "outputs.parquet").exists():
            files = max(files, len(list((run_dir / "parts").glob("part-*.parquet"))))
        time.sleep(_POLL_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return Peak(name, rows, peak, files, time.monotonic() - begin)


def peaks(folder: Path, rows: int, model: Path, window: int | None) -> Iterator[Peak]:
    """Of planning a job and of executing it."""
    source, plan, run_dir = folder / "rows.jsonl", folder / "plan.json", folder / "run"
    write_job(source, rows)
    words = ["plan", str(source), "-o", str(plan), "--model", str(model), "--hardware", "cpu"]
    words += ["--max-tokens", "1", "--workers", "1"]
    if window:
        words += ["--window", str(window)]
    yield watch("plan", rows, words, run_dir)
    words = ["execute", str(plan), "--run-dir", str(run_dir), "--kv-memory", "256MiB"]
    yield watch("execute", rows, [*words, "--chunk-size", "16384"], run_dir)


def child(words: list[str]) -> None:
    """blendrun with a backend that computes nothing."""
    if words[0] == "execute":
        _leave_products_out()
    from blendrun.cli.main import main

    sys.argv = ["blendrun", *words]
    main()


def _leave_products_out() -> None:
    from blendrun.engine import torch_backend

    def run(self: Any, batch: Any) -> torch_backend.StepResult:
        self._cache.take_writes()
        num = int(batch.needs_logits.sum())
        ids = np.full(num, 7, np.int32)
        return torch_backend.StepResult(ids, np.zeros(num, np.bool_), 0.0, 0.0, 0.0)

    torch_backend.TorchBackend.run = run  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs=2, default=[20_000, 200_000])
    parser.add_argument("--window", type=int)
    args = parser.parse_args()
    from tiny_models import make_checkpoint

    found: list[Peak] = []
    with tempfile.TemporaryDirectory() as name:
        model = make_checkpoint(Path(name) / "model", max_position_embeddings=_CONTEXT_LEN)
        for rows in args.rows:
            folder = Path(name) / str(rows)
            folder.mkdir()
            for peak in peaks(folder, rows, model, args.window):
                found.append(peak)
                parts = (
                    f", {peak.results_while_running} parts while it ran"
                    if peak.name == "execute"
                    else ""
                )
                print(
                    f"{peak.name:8} {peak.rows:>8,} rows {peak.bytes / 1e6:8.1f} MB{parts}",
                    flush=True,
                )
    for command in ("plan", "execute"):
        small, large = (peak for peak in found if peak.name == command)
        more = large.bytes - small.bytes
        each = more / (large.rows - small.rows)
        print(f"{command:8} {more / 1e6:8.1f} MB more, {each:.0f} bytes per row")
    print(json.dumps([{"command": p.name, "rows": p.rows, "peak_bytes": p.bytes} for p in found]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
