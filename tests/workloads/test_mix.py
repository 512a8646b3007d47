import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from blendrun.errors import InputError
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.mix import solve_mix
from blendrun.workloads.set_spec import default_sets
from blendrun.workloads.sets import LognormalSet, SubjectSet
from blendrun.workloads.synthesis import PAPER_TRACES
from blendrun.workloads.targets import Targets
from blendrun.workloads.totals import Totals, request_sums
from tiny_workloads import paper_cost, write_azure_traces

COST = paper_cost()
N = 2000


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> list[Drawn]:
    """N requests each of burst, openvid and mmlu."""
    sets = default_sets(write_azure_traces(tmp_path_factory.mktemp("traces")))
    return [each.draw(N, 0) for each in sets]


def totals(mix: Sequence[Drawn]) -> Totals:
    return Totals.of(np.sum([request_sums(each, COST).sum(axis=1) for each in mix], axis=0))


@pytest.mark.parametrize(("density", "sharing"), [*PAPER_TRACES, (0.8, 0.2), (3.0, 0.6)])
def test_three_sets_meet_both_targets(density: float, sharing: float, pools: list[Drawn]):
    mix = solve_mix(pools, Targets(density, sharing), COST)
    assert sum(map(len, mix)) == N
    assert totals(mix).density == pytest.approx(density, rel=0.01)
    assert totals(mix).sharing == pytest.approx(sharing, abs=0.005)


def test_two_sets_meet_the_density(pools: list[Drawn]):
    for density in (0.1, 0.5, 1.4):
        mix = solve_mix(pools[:2], Targets(density), COST)
        assert sum(map(len, mix)) == N
        assert totals(mix).density == pytest.approx(density, rel=0.01)


def test_one_set_is_taken_whole(pools: list[Drawn]):
    (only,) = solve_mix(pools[:1], Targets(), COST)
    assert only is pools[0]


def test_a_set_beyond_three_shares_what_the_others_leave(pools: list[Drawn]):
    more = LognormalSet("short", output_mean=50, output_range=(1, 500)).draw(N, 0)
    mix = solve_mix([more, *pools], Targets(1.4, 0.35), COST)
    assert sum(map(len, mix)) == N
    assert totals(mix).density == pytest.approx(1.4, rel=0.01)
    assert totals(mix).sharing == pytest.approx(0.35, abs=0.005)
    assert abs(len(mix[0]) - len(mix[1])) <= 1


def test_the_roles_follow_from_the_figures_not_from_the_order(pools: list[Drawn]):
    counts = [len(each) for each in solve_mix(pools, Targets(1.4, 0.35), COST)]
    turned = [len(each) for each in solve_mix(pools[::-1], Targets(1.4, 0.35), COST)]
    assert turned == counts[::-1]


def test_requests_come_from_the_start_of_a_pool_but_for_one_of_the_lowest_density(
    pools: list[Drawn],
):
    mix = solve_mix(pools, Targets(1.4, 0.35), COST)
    for i, (taken, pool) in enumerate(zip(mix, pools, strict=True)):
        same = taken.own_len == pool.own_len[: len(taken)]
        assert same[: len(taken) - (i == 1)].all()


def reach(error: InputError) -> tuple[float, float]:
    low, high = re.search(r"reach \w+ ([\d.e+-]+) to ([\d.e+-]+)", str(error.hint)).groups()
    return float(low), float(high)


def test_a_sharing_out_of_reach_is_refused_with_what_can_be_reached(pools: list[Drawn]):
    with pytest.raises(InputError, match=r"sharing 0\.98 at density 1\.4 cannot be met") as caught:
        solve_mix(pools, Targets(1.4, 0.98), COST)
    low, high = reach(caught.value)
    assert low < 0.1 < 0.5 < high < 0.98
    for sharing in (low + 0.01, high - 0.01):
        mix = solve_mix(pools, Targets(1.4, round(sharing, 3)), COST)
        assert totals(mix).sharing == pytest.approx(sharing, abs=0.006)


def test_a_density_out_of_reach_is_refused_with_what_can_be_reached(pools: list[Drawn]):
    for sets, targets in ((pools, Targets(1e4, 0.35)), (pools[:2], Targets(1e-3))):
        with pytest.raises(InputError, match=r"density .* cannot be met with 2,000") as caught:
            solve_mix(sets, targets, COST)
        low, high = reach(caught.value)
        assert 0.001 < low < 0.1
        assert 1 < high < 1e4


def test_too_few_requests_for_a_target_are_refused(tmp_path: Path):
    sets = (*default_sets(write_azure_traces(tmp_path))[:2], SubjectSet("mmlu"))
    with pytest.raises(InputError, match="cannot be met with 3 requests") as caught:
        solve_mix([each.draw(3, 0) for each in sets], Targets(1.4, 0.35), COST)
    assert "more requests" in str(caught.value.hint)


def test_outputs_without_kv_reads_do_not_hinder_the_solution(pools: list[Drawn]):
    # one output token: no decode step in the flavour `product`, so no KV read, density infinite
    cost = type(COST)(COST.shape, COST.hardware)
    ones = SubjectSet("ones", output_range=(1, 1)).draw(N, 0)
    mix = solve_mix([ones, pools[1]], Targets(1.0), cost)
    sums = np.sum([request_sums(each, cost).sum(axis=1) for each in mix], axis=0)
    assert Totals.of(sums).density == pytest.approx(1.0, rel=0.01)
