"""Neighbours are merged until they weigh enough; a heavy request stays alone."""

import numpy as np

from blendrun.schedule.step.state import MAX_DENSITY
from blendrun.schedule.step.units import merged


def test_light_requests_have_the_figures_of_their_unit():
    n = 12_800
    compute_s = np.tile([1.0, 3.0], n // 2)
    units = merged(compute_s, np.ones(n), np.full(n, 50, np.int32))
    assert np.allclose(units["density"], 2.0)
    assert np.allclose(units["prefill_rate"], 50.0)


def test_units_have_equal_seconds_of_either_kind():
    compute_s = np.linspace(9, 1, 10_000)
    memory_s = np.linspace(1, 5, 10_000)
    density = merged(compute_s, memory_s, np.zeros(10_000, np.int32))["density"]
    begins = np.flatnonzero(np.diff(density, prepend=0))
    weight = compute_s / compute_s.sum() + memory_s / memory_s.sum()
    assert len(begins) == 128
    assert (np.diff(density) <= 0).all()
    np.testing.assert_allclose(np.add.reduceat(weight, begins), 2 / 128, rtol=0.03)


def test_a_few_requests_stay_as_they_are():
    compute_s, memory_s = np.array([3.0, 2.0, 1.0]), np.array([0.0, 4.0, 4.0])
    units = merged(compute_s, memory_s, np.array([30, 20, 10], np.int32))
    assert units["density"].tolist() == [MAX_DENSITY, 0.5, 0.25]
    assert units["prefill_rate"].tolist() == [30 * MAX_DENSITY / 3, 5.0, 2.5]


def test_an_empty_sequence_has_no_units():
    nothing = np.zeros(0)
    assert len(merged(nothing, nothing, np.zeros(0, np.int32))) == 0
