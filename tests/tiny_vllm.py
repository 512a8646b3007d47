"""vLLM's fake in this process, as the only rank of a run."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blendrun.data.results import RankJournal
from blendrun.engine import vllm
from blendrun.engine.attempt import WindowWork
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.twins import Twins, find_twins
from blendrun.launch.messages import OpenWindow
from blendrun.launch.vllm_engine import VllmEngine
from blendrun.launch.worker import RankJob
from tiny_jobs import SILENT

FAKE = Path(__file__).parent / "fake_vllm"
VARIABLES = (
    "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS",
    "VLLM_CPU_OMP_THREADS_BIND", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`import vllm` gives the fake, here and in processes that start here."""
    monkeypatch.syspath_prepend(FAKE)
    for name in VARIABLES:  # so that what a run sets is undone
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.modules.pop("blendrun.engine.vllm_scheduler", None)


class OneRank:
    """`Ranks` of `engine.attempt`: the engine of a rank, in this process; notes what vLLM gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.added: list[tuple[int, list[int], Any]] = []
        self.most_unfinished = 0
        if monkeypatch is not None:
            monkeypatch.setattr(vllm.Vllm, "add", self._noting(vllm.Vllm.add))

    def _noting(self, add: Any) -> Any:
        def noted(engine: Any, request: int, token_ids: list[int], params: Any) -> Any:
            self.added.append((request, token_ids, params))
            refused = add(engine, request, token_ids, params)
            self.most_unfinished = max(self.most_unfinished, engine.num_unfinished)
            return refused

        return noted

    def answer(self, work: WindowWork) -> float:
        numbers, begin_s = work.journal.reserve(), time.monotonic()
        job = RankJob(
            0, 1, 1, work.plan_path.resolve(), work.journal.run_dir.resolve(), work.settings,
            work.attempt, numbers, work.deadline.begin_s, "",
        )  # fmt: skip
        opened = OpenWindow(work.number, work.pending, *work.requests.seen, begin_s)
        journal = RankJournal(job.run_dir, numbers)
        running = Twins.none(work.pending).running
        if work.settings.prefix_cache:
            running = find_twins(work.requests, work.pending).running
        loop, about = VllmEngine(job).window(opened, running, journal, _Alone())  # type: ignore[arg-type]
        work.describe(about.environment)
        loop.run()
        return begin_s

    def close(self) -> None:
        pass


class _Alone:
    """A `Feed` without a coordinator."""

    def begins(self, requests: np.ndarray) -> None:
        pass

    def saved(self, requests: np.ndarray) -> None:
        pass

    def goes_on(self, loop: Any, is_dry: bool) -> bool:
        del loop
        return not is_dry


def execute_on_vllm(plan: Path, run_dir: Path, rank: Any = None, **settings: Any) -> Any:
    wanted = ExecuteSettings(
        **{"engine": "vllm", "dtype": "float32", "flush_interval_s": 0.0, **settings}
    )
    return execute_plan(plan, run_dir, wanted, SILENT, ranks=rank or OneRank())
