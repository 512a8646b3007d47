from pathlib import Path

import numpy as np
import pytest

from blendrun.workloads.drawn import Drawn
from blendrun.workloads.sets import LognormalSet, RequestSet, SubjectSet, TraceSet
from blendrun.workloads.trace_file import TraceFile
from tiny_workloads import write_trace


def columns(drawn: Drawn) -> list[list[int]]:
    return [c.tolist() for c in (drawn.own_len, drawn.output_len, drawn.group, drawn.group_depth)]


@pytest.fixture(params=["trace", "lognormal", "subjects"])
def some_set(request: pytest.FixtureRequest, tmp_path: Path) -> RequestSet:
    trace = write_trace(tmp_path / "t.parquet", [(i, 2 * i) for i in range(1, 50)])
    return {
        "trace": TraceSet("a", (TraceFile(trace),)),
        "lognormal": LognormalSet("a"),
        "subjects": SubjectSet("a"),
    }[request.param]


def test_a_longer_sample_begins_with_the_shorter_one(some_set: RequestSet):
    long, short = some_set.draw(500, 3), some_set.draw(37, 3)
    assert len(long) == 500
    assert columns(long.first(37)) == columns(short)


def test_another_seed_draws_other_requests(some_set: RequestSet):
    assert columns(some_set.draw(50, 3)) != columns(some_set.draw(50, 4))


def test_sets_of_one_kind_with_different_names_differ():
    assert columns(LognormalSet("a").draw(50, 0)) != columns(LognormalSet("b").draw(50, 0))


def test_a_trace_set_has_only_rows_of_the_trace_below_one_system_prompt(tmp_path: Path):
    rows = [(10, 1), (20, 2), (30, 3)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    drawn = TraceSet("a", (TraceFile(trace),), system_len=7).draw(200, 0)
    pairs = set(zip(drawn.own_len.tolist(), drawn.output_len.tolist(), strict=True))
    assert pairs == set(rows)
    assert set(drawn.prompt_len - drawn.own_len) == {7}


def test_files_have_their_weights_shares_whatever_their_sizes(tmp_path: Path):
    short = write_trace(tmp_path / "short.parquet", [(1, 1)])
    long = write_trace(tmp_path / "long.parquet", [(2, 2)] * 900)
    drawn = TraceSet("a", (TraceFile(short, 3), TraceFile(long, 1))).draw(20_000, 0)
    assert (drawn.own_len == 1).mean() == pytest.approx(0.75, abs=0.01)


def test_openvid_has_short_prompts_and_outputs_of_16_k_on_average():
    drawn = LognormalSet("openvid").draw(50_000, 0)
    assert (drawn.own_len.min(), drawn.own_len.max()) == (100, 300)
    assert (drawn.output_len.min(), drawn.output_len.max()) == (512, 65_536)
    unclipped = LognormalSet("openvid", output_range=(1, 2**31 - 1)).draw(200_000, 0)
    assert unclipped.output_len.mean() == pytest.approx(16_384, rel=0.02)
    assert np.log(unclipped.output_len).std() == pytest.approx(1.02, rel=0.02)


def test_mmlu_has_57_subjects_whose_prefixes_hold_the_system_prompt():
    drawn = SubjectSet("mmlu").draw(20_000, 0)
    assert len(set(drawn.group)) == len(drawn.group_depth) == 57
    assert 400 <= drawn.group_depth.min() < drawn.group_depth.max() <= 1500
    assert (drawn.own_len.min(), drawn.own_len.max()) == (60, 150)
    assert set(drawn.output_len) == {2, 3, 4, 5, 6}
    assert drawn.system_len == 48


def test_swapping_exchanges_two_requests():
    drawn = SubjectSet("mmlu").draw(5, 0)
    swapped = drawn.swapped(1, 4)
    assert swapped.own_len.tolist() == drawn.own_len[[0, 4, 2, 3, 1]].tolist()
    assert swapped.group.tolist() == drawn.group[[0, 4, 2, 3, 1]].tolist()
