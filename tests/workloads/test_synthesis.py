from pathlib import Path

import pytest

from blendrun.errors import InputError
from blendrun.workloads.sets import LognormalSet
from blendrun.workloads.summary import summarize
from blendrun.workloads.synthesis import (
    PAPER_TRACES,
    long_output_workload,
    paper_workload,
    synthesize,
)
from blendrun.workloads.targets import Targets
from tiny_workloads import SHARED_TRACES, paper_cost, shared_traces, write_azure_traces

COST = paper_cost()


@pytest.mark.parametrize(("density", "sharing"), PAPER_TRACES)
def test_a_paper_workload_has_density_and_sharing_by_its_tree(
    density: float, sharing: float, tmp_path: Path
):
    traces = write_azure_traces(tmp_path)
    workload = paper_workload(density, sharing, 3000, 1, traces, COST)
    assert workload.num_requests == 3000
    assert workload.set_names == ("burst", "openvid", "mmlu")
    assert workload.vocab_size == COST.shape.vocab_size
    assert workload.totals(COST).density == pytest.approx(density, rel=0.01)
    assert workload.totals(COST).sharing == pytest.approx(sharing, abs=0.005)


def test_a_trace_and_openvid_meet_a_density(tmp_path: Path):
    trace = write_azure_traces(tmp_path) / "azure_conv.parquet"
    workload = long_output_workload(trace, 0.9, 3000, 0, COST)
    assert workload.set_names == ("azure_conv", "openvid")
    assert workload.totals(COST).density == pytest.approx(0.9, rel=0.01)


def test_the_summary_adds_up(tmp_path: Path):
    workload = paper_workload(1.4, 0.35, 2000, 0, write_azure_traces(tmp_path), COST)
    whole, by_set = summarize(workload, COST)
    assert [each.name for each in by_set] == ["burst", "openvid", "mmlu"]
    for field in ("requests", "prompt_tokens", "unique_prompt_tokens", "output_tokens"):
        assert getattr(whole, field) == sum(getattr(each, field) for each in by_set), field
    assert by_set[1].density < whole.density < by_set[0].density
    assert by_set[2].sharing > whole.sharing > by_set[0].sharing
    assert whole.density == workload.totals(COST).density
    assert by_set[2].mean_output_len == pytest.approx(4, abs=0.2)


def test_numbers_below_their_least_are_refused():
    with pytest.raises(InputError, match="at least 1 request"):
        synthesize([LognormalSet("a")], 0, Targets(), COST)
    with pytest.raises(InputError, match="seed must be 0"):
        synthesize([LognormalSet("a")], 5, Targets(), COST, seed=-1)
    with pytest.raises(InputError, match="no set"):
        synthesize([], 5, Targets(), COST)


@pytest.mark.parametrize(("density", "sharing"), PAPER_TRACES)
def test_the_papers_traces_are_met_with_real_lengths(density: float, sharing: float):
    traces = shared_traces()
    if traces is None:
        pytest.skip(f"../{SHARED_TRACES} is not there")
    workload = paper_workload(density, sharing, 20_000, 0, traces, COST)
    assert workload.totals(COST).density == pytest.approx(density, rel=0.01)
    assert workload.totals(COST).sharing == pytest.approx(sharing, abs=0.005)
    assert 30 < (workload.set_idx == 1).sum() < 180
