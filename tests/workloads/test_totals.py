"""Sums by request against the prices of the tree."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.tree.annotate import annotate
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.totals import Totals, request_sums, running_sums
from tiny_workloads import drawn, paper_cost, small_sets, workload_of

COST = paper_cost()


@given(st.lists(small_sets(), min_size=1, max_size=3).filter(lambda s: any(map(len, s))))
def test_sums_are_those_of_the_workloads_tree(sets: list[Drawn]):
    workload = workload_of(*sets)
    by_request = Totals.of(np.sum([request_sums(each, COST).sum(axis=1) for each in sets], axis=0))
    by_tree = workload.totals(COST)
    assert by_request.compute_s == pytest.approx(by_tree.compute_s)
    assert by_request.saved_s == pytest.approx(by_tree.saved_s, abs=1e-9 * by_tree.compute_s)
    assert by_request.memory_s == pytest.approx(by_tree.memory_s)
    priced = annotate(workload.tree(), workload.output_len, COST)
    assert by_request.density == pytest.approx(priced.root_density)


def test_the_first_of_a_group_pays_its_prefix_and_saves_nothing():
    sums = request_sums(drawn([5, 5, 5], [0, 1, 0], [10, 20], 6), COST)
    assert sums[1].tolist() == pytest.approx(
        [0, float(COST.prefill_s(0, 6)), float(COST.prefill_s(0, 10))]
    )


def test_running_sums_begin_with_nothing():
    running = running_sums(np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 3.0]]))
    assert running.tolist() == [[0, 1, 3], [0, 0, 1], [0, 3, 6]]


def test_density_is_infinite_where_no_kv_is_read_and_sharing_zero_where_nothing_is_computed():
    assert Totals(1.0, 0.0, 0.0).density == math.inf
    assert Totals(0.0, 0.0, 0.0).sharing == 0
    assert Totals(4.0, 1.0, 2.0).density == 1.5
    assert Totals(4.0, 1.0, 2.0).sharing == 0.25
