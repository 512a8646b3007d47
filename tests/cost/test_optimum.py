import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.cost.optimum import min_steps, optimum
from blendrun.errors import CapacityError

A100 = HardwareProfile.load("a100-80gb-sxm")
LLAMA = ModelShape.load("llama-3.1-8b")
COST = CostModel(LLAMA, A100)
seconds = st.floats(0.01, 1e6)


def test_sharing_spares_compute_and_no_memory():
    best = optimum(100.0, 40.0, 1, COST, saved_compute_s=35.0)
    assert best.shared_compute_s == 65.0
    assert best.sharing_frac == 0.35
    assert best.memory_s == 40.0
    assert best.density == pytest.approx(65 / 40)
    assert best.ideal_s == 65.0


def test_practical_optimum_follows_the_overlap_of_the_machine():
    sequential = CostModel(LLAMA, dataclasses.replace(A100, overlap_exponent=1.0))
    assert optimum(3.0, 4.0, 1, sequential).practical_s == pytest.approx(7.0)
    assert optimum(3.0, 4.0, 1, COST).practical_s == pytest.approx((3**4 + 4**4) ** 0.25)


def test_practical_optimum_reads_the_weights_once_per_step():
    best = optimum(1e-6, 0.0, 1000, COST)
    assert best.practical_s == pytest.approx(1000 * COST.weight_read_s)
    assert best.ideal_s == pytest.approx(1e-6)


@given(compute=seconds, memory=seconds, saved=st.floats(0, 1), steps=st.integers(0, 10_000))
def test_bounds_keep_their_order(compute: float, memory: float, saved: float, steps: int):
    best = optimum(compute, memory, steps, COST, saved_compute_s=saved * compute)
    assert best.ideal_s <= best.practical_s * (1 + 1e-12)
    floor = max(best.shared_compute_s, steps * COST.weight_read_s)
    assert best.practical_s <= (floor + memory) * (1 + 1e-12)


def test_density_is_absent_where_no_kv_is_read():
    assert optimum(1.0, 0.0, 1, COST).density is None


def test_an_empty_job_takes_no_time():
    best = optimum(0.0, 0.0, min_steps([], [], 100, COST), COST)
    assert (best.ideal_s, best.practical_s, best.sharing_frac) == (0.0, 0.0, 0.0)


def test_steps_are_bounded_by_the_longest_request():
    assert min_steps([10, 10], [5, 50], 10**9, COST) == 50


def test_steps_are_bounded_by_kv_memory():
    # each request holds 10 + 11 + 12 tokens over its three steps
    assert min_steps([10] * 100, [3] * 100, 33, COST) == 100


def test_paper_requests_live_one_step_longer():
    paper = CostModel(LLAMA, A100, flavour="paper")
    assert min_steps([10], [50], 10**9, paper) == 51
    assert min_steps([10] * 100, [3] * 100, 36, paper) == 100  # 10·3 + 3·4/2 token-steps each


def test_no_memory_for_kv_is_an_error_with_a_hint():
    with pytest.raises(CapacityError, match="no memory for KV pages") as caught:
        min_steps([1], [1], 0, COST)
    assert caught.value.hint
