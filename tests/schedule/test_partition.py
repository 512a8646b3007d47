"""Data-parallel parts: everything once, the mix alike on every rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.schedule.partition import partition

seconds = st.floats(0, 100, allow_nan=False)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=40), st.integers(1, 8))
def test_every_request_is_in_one_part_in_planned_order(costs, parts: int):
    compute, memory = np.array(costs).T
    sequence = np.random.default_rng(0).permutation(len(costs)).astype(np.int32)
    made = partition(sequence, compute, memory, 1.0, parts)
    assert len(made) == parts
    assert sorted(np.concatenate(made).tolist()) == list(range(len(costs)))
    place = {int(r): i for i, r in enumerate(sequence)}
    for part in made:
        assert [place[int(r)] for r in part] == sorted(place[int(r)] for r in part)


@pytest.mark.parametrize("parts", [2, 4, 7])
def test_parts_have_equal_compute_and_equal_reads(parts: int):
    rng = np.random.default_rng(1)
    n = 4000
    compute, memory = rng.exponential(1.0, n), rng.lognormal(-1, 1.5, n)
    density = compute.sum() / memory.sum()
    made = partition(np.arange(n, dtype=np.int32), compute, memory, density, parts)
    for costs in (compute, memory):
        sums = np.array([costs[part].sum() for part in made])
        assert sums.max() / sums.mean() < 1.1
