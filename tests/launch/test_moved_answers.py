"""Answers that have begun on one rank and go on with another: the tokens are those of one rank."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from blendrun.data.results import RankJournal
from blendrun.engine.attempt import WindowWork
from blendrun.engine.execute import execute_plan
from blendrun.engine.loop import RunLoop
from blendrun.engine.settings import ExecuteSettings
from blendrun.launch.messages import OpenWindow
from blendrun.launch.rank_group import TORCH_ENGINE
from blendrun.launch.torch_engine import TorchEngine
from blendrun.launch.worker import RankJob
from blendrun.schedule.step import handover
from tiny_jobs import SILENT, execute, plan_job

TEXT = "question: what is the sum of 12 and 30? answer: the "
STEPS = 6
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "sum", "max_tokens": 30},
    {"prompt": TEXT + "dog", "max_tokens": 40, "temperature": 0.9, "logprobs": 2},
    {"prompt": "the quick brown", "max_tokens": 35, "repetition_penalty": 1.3, "stop": ["zzz"]},
    {"prompt": "42", "max_tokens": 25, "prompt_logprobs": 1},
    {"prompt": TEXT[:20], "max_tokens": 3},
]


class Giver:
    """Gives all that runs away after some steps, but one request."""

    def __init__(self) -> None:
        self.steps, self.answers, self.requests = 0, None, np.zeros(0, np.int32)

    def begins(self, requests: Any) -> None: ...

    def saved(self, *_: Any) -> None: ...

    def goes_on(self, loop: RunLoop, is_dry: bool) -> bool:
        self.steps += 1
        if self.steps == STEPS:
            self.requests, self.answers = loop.release(np.inf, 10**6)
        return not is_dry


class Taker(Giver):
    """Begins with its own, and takes what was given after a step."""

    def __init__(self, giver: Giver) -> None:
        super().__init__()
        self.giver = giver

    def goes_on(self, loop: RunLoop, is_dry: bool) -> bool:
        self.steps += 1
        if self.steps == 1:
            loop.deposit(self.giver.requests, self.giver.answers)
            return True
        return not is_dry


class OneAfterTheOther:
    """`Ranks` of two ranks in this process: the second begins when the first has ended."""

    def __init__(self) -> None:
        self.moved: pa.Table | None = None

    def answer(self, work: WindowWork) -> float:
        begin_s, last = time.monotonic(), work.pending[-1:]
        giver = Giver()
        for rank, feed in enumerate([giver, Taker(giver)]):
            job = RankJob(
                rank, 2, 2, work.plan_path, work.journal.run_dir, work.settings, work.attempt,
                work.journal.reserve(), work.deadline.begin_s, TORCH_ENGINE,
            )  # fmt: skip
            opened = OpenWindow(work.number, work.pending, *work.requests.seen, begin_s)
            mine = last if rank else np.setdiff1d(work.pending, last)
            journal = RankJournal(job.run_dir, job.numbers)
            TorchEngine(job).window(opened, mine, journal, feed)[0].run()
        self.moved = giver.answers
        return begin_s

    def close(self) -> None: ...


def test_answers_that_move_go_on_with_the_tokens_they_have(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handover, "WORTH", 0.0)  # such short answers never are
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute(plan, tmp_path / "alone")
    ranks = OneAfterTheOther()
    settings = ExecuteSettings(dtype="float32", flush_interval_s=0.0)
    execute_plan(plan, tmp_path / "run", settings, SILENT, ranks=ranks)
    assert ranks.moved is not None
    assert ranks.moved.num_rows >= 2
    lengths = pc.list_value_length(ranks.moved["token_ids"]).to_pylist()
    assert all(0 < length <= STEPS for length in lengths)
    alone, run = (pq.read_table(tmp_path / name / "outputs.parquet") for name in ("alone", "run"))
    names = ["output_token_ids", "output_text", "finish_reason", "error"]
    assert run.select(names).to_pylist() == alone.select(names).to_pylist()
    made, expected = (
        pc.list_flatten(table["output_logprobs"]).to_pylist() for table in (run, alone)
    )
    assert made == pytest.approx(expected, abs=1e-4)
    assert run.num_rows == len(ROWS)
