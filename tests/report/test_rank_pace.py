"""The pace of ranks: against the fastest one that did its part."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tiny_slow_rank
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.launch.local import LocalLauncher
from blendrun.launch.rank_group import RankGroup
from blendrun.report.gap import PARTS
from blendrun.report.priced_steps import price_steps
from blendrun.report.rank_pace import RankPace
from blendrun.report.report import make_report
from tiny_jobs import SILENT, cost_model, plan_job


def pace_of(ranks: list[int], step_s: list[float], schedule_s: float = 0.0) -> RankPace:
    """Of steps that have the same price."""
    columns = {name: np.zeros(len(ranks)) for name in STEP_SCHEMA.names}
    columns |= {"attempt": np.ones(len(ranks)), "rank": ranks, "step_s": step_s}
    columns |= {"start_s": np.arange(len(ranks)), "schedule_s": np.full(len(ranks), schedule_s)}
    columns["decode_tokens"] = np.full(len(ranks), 8)
    table = pa.table(columns).cast(STEP_SCHEMA)
    return RankPace.of(price_steps(table, cost_model(), overlaps=True))


def test_ranks_of_the_same_pace_lose_nothing():
    assert pace_of([0, 0, 1], [1.0, 1.0, 1.0]).lost_s == pytest.approx(0)


def test_the_slowest_rank_is_named_with_its_factor():
    pace = pace_of([0, 0, 1, 1, 2], [1.0, 1.0, 1.0, 1.0, 5.0])
    assert (pace.slowest, pace.factor) == (2, pytest.approx(5))
    assert pace.lost_s == pytest.approx(4)


def test_measured_scheduling_is_no_pace():
    assert pace_of([0, 1], [1.5, 1.5], schedule_s=0.5).lost_s == pytest.approx(0)
    assert pace_of([0, 1], [1.5, 2.5], schedule_s=0.5).factor == pytest.approx(2)


def test_a_rank_that_did_next_to_nothing_is_no_measure():
    pace = pace_of([0] * 9 + [1] * 9 + [2], [1.0] * 18 + [0.01])
    assert pace.lost_s == pytest.approx(0)


def test_one_rank_has_no_other():
    assert pace_of([0, 0], [1.0, 9.0]) == RankPace(0.0, 0, 1.0)


def test_no_step_no_pace():
    assert pace_of([], []).lost_s == 0


def test_a_rank_that_stalls_is_the_largest_cost_of_a_real_run(checkpoint: Path, tmp_path: Path):
    rows = [
        {"prompt": f"question {i}: the sum?", "max_tokens": 8, "ignore_eos": True} for i in range(8)
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    settings = ExecuteSettings(dtype="float32", max_seqs=2)
    group = RankGroup(LocalLauncher(2), 2, tiny_slow_rank.ENGINE)
    execute_plan(plan, tmp_path / "run", settings, SILENT, ranks=group)
    explained = make_report(tmp_path / "run").explained
    assert explained is not None
    seconds = explained.facts.gap.seconds
    start = ("loading", "files", "scheduling")  # so short a run is mostly its start
    largest = max((part for part in PARTS if part not in start), key=lambda part: seconds[part])
    assert largest == "rank_imbalance"
    pace, slow = explained.facts.pace, tiny_slow_rank.SLOW
    assert (pace.slowest, pace.factor > 1) == (slow, True)
    assert f"rank {slow} takes" in explained.sentence("rank_imbalance")
