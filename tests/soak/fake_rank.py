"""The engine of a rank without a model and without torch: answers follow from the row's number.

What goes wrong is written in `faults.json` beside the run folder: ranks that die at each start,
rows that kill the process which computes them, ranks whose disk is full after some files, a rank
that stops once after some steps.
"""

import errno
import json
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from blendrun.data.answers import answers_table
from blendrun.data.results import RankJournal
from blendrun.data.unfinished import UNFINISHED_SCHEMA
from blendrun.engine.rank_figures import RankFigures
from blendrun.launch.messages import OpenWindow, Running
from blendrun.launch.rank_feed import RankFeed
from blendrun.launch.worker import RankJob
from blendrun.schedule.plan_file import read_header, read_plan, window_paths
from blendrun.schedule.step.outputs import Outputs

ENGINE = "soak.fake_rank:open_engine"
FAULTS = "faults.json"
MOST_RUNNING = 4
FLUSH_STEPS = 2


def output_len(row: int) -> int:
    """Steps that a row takes, and tokens of its answer."""
    return 1 + row * 7 % 5


class FakeLoop:
    def __init__(self, engine: "FakeEngine", opened: OpenWindow, requests: Any, feed: RankFeed):
        stored = read_plan(window_paths(engine.job.plan_path, engine.plan)[opened.number])
        table = stored.requests.take(np.argsort(stored.requests["request"].to_numpy()))
        self._row, self._sample = table["row"].to_numpy(), table["sample"].to_numpy()
        self._engine, self._feed = engine, feed
        self._waiting = deque(requests.tolist())
        self._running: dict[int, int] = {}  # request → steps left
        self._ended: list[int] = []
        self._steps = self._tokens = 0

    def run(self) -> None:
        try:
            while self._feed.goes_on(self, not self._step()):
                pass
        finally:
            self._flush()

    def _step(self) -> bool:
        new = []
        while self._waiting and len(self._running) < MOST_RUNNING:
            new.append(self._waiting.popleft())
            self._running[new[-1]] = output_len(int(self._row[new[-1]]))
        if new:
            self._feed.begins(np.array(new, np.int32))
        if not self._running:
            self._flush()
            return False
        time.sleep(self._engine.faults.get("step_s", 0.005))
        self._engine.maybe_hang(self._steps)
        for request in list(self._running):
            if self._row[request] in self._engine.faults.get("killers", ()):
                os.kill(os.getpid(), signal.SIGKILL)
            self._running[request] -= 1
            self._tokens += 1
            if not self._running[request]:
                del self._running[request]
                self._ended.append(request)
        self._steps += 1
        if self._steps % FLUSH_STEPS == 0:
            self._flush()
        return True

    def _flush(self) -> None:
        if not self._ended:
            return
        request = np.array(self._ended, np.int32)
        row = self._row[request]
        tokens = [[int(r) % 100] * output_len(int(r)) for r in row]
        self._engine.check_disk()
        table = answers_table(
            row=row,
            output_index=self._sample[request],
            output_text=[f"answer {r}" for r in row],
            output_token_ids=tokens,
            finish_reason=["stop"] * len(row),
            num_prompt_tokens=np.ones(len(row), np.int32),
            num_cached_tokens=np.zeros(len(row), np.int32),
        )
        self._engine.journal.append(table)
        self._feed.saved(request)
        self._ended = []

    def deposit(self, requests: Any, _answers: Any) -> None:
        self._waiting.extend(requests.tolist())

    def withdraw(self, requests: Any) -> Any:
        taken = [r for r in requests.tolist() if r in self._waiting]
        self._waiting = deque(r for r in self._waiting if r not in set(taken))
        return np.array(taken, np.int32), None

    def release(self, _memory_s: float, _room: int) -> Any:
        """The request with most left to do, unless it is the only one; it starts over."""
        last = max(self._running, key=lambda r: self._running[r], default=None)
        if last is None or len(self._running) < 2:
            return np.zeros(0, np.int32), None
        del self._running[last]
        return np.array([last], np.int32), None

    def observe(self, elsewhere: Outputs) -> None: ...

    def figures(self) -> RankFigures:
        waiting, running = len(self._waiting), len(self._running)
        seconds = 0.005 * self._steps
        return RankFigures(
            running, waiting, 0.01 * waiting, 0.01 * running, 0.0, False, 1000, seconds, seconds,
            self._tokens, np.zeros(0), Outputs.nothing(),
        )  # fmt: skip


class FakeEngine:
    def __init__(self, job: RankJob) -> None:
        self.job = job
        path = job.run_dir.parent / FAULTS
        self.faults = json.loads(path.read_text()) if path.exists() else {}
        if job.rank in self.faults.get("dies_at_start", ()):
            os._exit(7)
        self.plan, _ = read_header(job.plan_path)
        self.journal: RankJournal
        self._files = 0

    def maybe_hang(self, steps: int) -> None:
        """Stop this process, the first of its rank only."""
        after = self.faults.get("hangs", {}).get(str(self.job.rank))
        mark = self.job.run_dir.parent / f"hung-{self.job.rank}"
        if after is not None and steps >= after and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    def check_disk(self) -> None:
        self._files += 1
        after = self.faults.get("full_disk", {}).get(str(self.job.rank))
        if after is not None and self._files > after:
            path: Path = self.job.run_dir / "parts"
            from blendrun.data.disk import full_disk

            with full_disk(path):
                raise OSError(errno.ENOSPC, "no room")

    def window(
        self, opened: OpenWindow, requests: Any, journal: RankJournal, feed: RankFeed
    ) -> tuple[FakeLoop, Running]:
        self.journal = journal
        journal.save_unfinished(UNFINISHED_SCHEMA.empty_table())
        about = {"attention": "none", "kv_memory": "none", "simulated": True}
        return FakeLoop(self, opened, requests, feed), Running(about, 0)


def open_engine(job: RankJob) -> FakeEngine:
    return FakeEngine(job)
