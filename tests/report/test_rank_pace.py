"""The pace of ranks: against the fastest one that did its part."""

import numpy as np
import pyarrow as pa
import pytest

from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.report.priced_steps import price_steps
from blendrun.report.rank_pace import RankPace
from tiny_jobs import cost_model


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
