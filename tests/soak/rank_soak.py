"""Runs on several ranks in a row, each with a random fault: `make soak-ranks`.

A rank is killed, stopped for a while, cannot write, or its connection breaks, at a random moment.
With a fake engine. Afterwards no row may be lost or doubled, and no process may be left; a run that
had to stop goes on with another number of ranks, and then is complete.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from blendrun.data.model_files import resolve_model
from blendrun.engine import attempt, execute
from blendrun.errors import BlendrunError, DiskFullError
from blendrun.launch.local import LocalHandle, LocalLauncher
from blendrun.launch.worker import RankJob
from tiny_ranks import check_outputs, plan_rows, run_on_ranks, set_faults

KINDS = ("kill", "stop", "write", "connection")


class FaultyLauncher(LocalLauncher):
    """Does something to one rank, some time after it has started."""

    def __init__(self, num_ranks: int, kind: str, rank: int, after_s: float, stop_s: float) -> None:
        super().__init__(num_ranks)
        self._kind, self._rank, self._after_s, self._stop_s = kind, rank, after_s, stop_s
        self._timers: list[threading.Timer] = []
        self.pids: list[int] = []

    def start(self, job: RankJob) -> LocalHandle:
        handle = super().start(job)
        pid = handle.process.pid
        assert pid is not None
        self.pids.append(pid)
        if job.rank == self._rank and not self._timers and self._kind != "write":
            timer = threading.Timer(self._after_s, self._strike, (handle, pid))
            self._timers.append(timer)
            timer.start()
        return handle

    def _strike(self, handle: LocalHandle, pid: int) -> None:
        try:
            if self._kind == "kill":
                os.kill(pid, signal.SIGKILL)
            elif self._kind == "stop":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._stop_s)
                os.kill(pid, signal.SIGCONT)
            else:
                break_connection(handle)
        except ProcessLookupError:
            return  # it had ended

    def finish(self) -> None:
        for timer in self._timers:
            timer.join()


class Soak:
    def __init__(self, folder: Path, num_rows: int, seed: int, stop_s: float) -> None:
        self._folder, self._num_rows, self._stop_s = folder, num_rows, stop_s
        self._rng = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.plan = plan_rows(folder, num_rows)

    def run(self, number: int) -> None:
        """Raises AssertionError where a row or a process is not where it should be."""
        rng, ranks = self._rng, self._rng.choice([2, 3])
        kind, rank = rng.choice(KINDS), rng.randrange(ranks)
        self.faults[kind] += 1
        run_dir = self._folder / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        set_faults(self._folder, full_disk={str(rank): rng.randrange(6)} if kind == "write" else {})
        launcher = FaultyLauncher(ranks, kind, rank, rng.uniform(0.0, 1.5), self._stop_s)
        try:
            self._execute(ranks, launcher)
        except DiskFullError:
            assert kind == "write", f"run {number}: a full disk, without one"
            set_faults(self._folder)
            self._execute(5 - ranks, FaultyLauncher(5 - ranks, "none", 0, 0, 0))
        check_outputs(run_dir, self._num_rows)

    def _execute(self, ranks: int, launcher: FaultyLauncher) -> None:
        try:
            run_on_ranks(self.plan, ranks, launcher)
        finally:
            launcher.finish()
            left = [pid for pid in launcher.pids if Path(f"/proc/{pid}").exists()]
            assert not left, f"processes are left: {left}"


def break_connection(handle: LocalHandle) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(handle._pipe.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)


def find_model_without_weights(plan: Any, _settings: Any) -> Any:
    return resolve_model(plan.model.spec, weights=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop-seconds", type=float, default=5.0)
    chosen = parser.parse_args(arguments)
    attempt.find_model = execute.find_model = find_model_without_weights
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), chosen.rows, chosen.seed, chosen.stop_seconds)
        for number in range(chosen.runs):
            try:
                soak.run(number)
            except (AssertionError, BlendrunError):
                print(f"run {number} failed ({dict(soak.faults)})", file=sys.stderr)
                raise
            print(f"{number + 1} runs", file=sys.stderr, flush=True)
    told = ", ".join(f"{soak.faults[kind]} {kind}" for kind in KINDS)
    print(f"{chosen.runs} runs ({told}): no row lost, none doubled, no process left")
