"""A cost model on a profile that has measured rates."""

from dataclasses import replace

import numpy as np
import pytest

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape

HARDWARE = replace(
    HardwareProfile.load("h200"),
    gemm_tokens=(1, 100, 200),
    gemm_flops=(1e12, 5e13, 8e13),
    attention_flops=2e13,
)
SHAPE = ModelShape.load("configs/models/llama-3.1-8b.toml")
COST = CostModel(SHAPE, HARDWARE)


def test_products_take_the_measured_time_at_measured_sizes():
    flops = 2 * SHAPE.body_params * np.array([1, 100, 200])
    assert COST.step_products_s([1, 100, 200]) == pytest.approx(flops / HARDWARE.gemm_flops)


def test_products_lie_on_a_line_between_sizes_and_go_on_at_the_last_rate():
    one, middle, two = COST.step_products_s([100, 150, 200])
    assert middle == pytest.approx((one + two) / 2)
    assert COST.step_products_s(1000) == pytest.approx(5 * two)
    assert COST.step_products_s(0) == 0


def test_a_measured_head_is_priced_by_its_own_tokens():
    assert COST.step_heads_s(100) == pytest.approx(2 * SHAPE.head_params * 100 / 5e13)
    assert COST.step_heads_s(0) == 0


def test_weight_reads_are_in_measured_products_and_apart_otherwise():
    assert COST.step_floor_s(10) == 0
    plain = CostModel(SHAPE, HardwareProfile.load("h200"))
    assert plain.step_floor_s(10) == plain.step_weight_read_s(10) > 0


def test_prefill_attention_has_a_rate_of_its_own():
    plain = CostModel(SHAPE, replace(HARDWARE, attention_flops=None))
    pairs_s = 2 * SHAPE.query_width * SHAPE.num_layers * 1000**2
    slower = COST.prefill_s(0, 1000) - plain.prefill_s(0, 1000)
    assert slower == pytest.approx(pairs_s / 2e13 - pairs_s / HARDWARE.effective_flops)


def test_without_measured_rates_products_round_up_to_the_tile():
    plain = CostModel(SHAPE, replace(HardwareProfile.load("h200"), gemm_tile=128))
    assert plain.step_products_s(1) == plain.step_products_s(128)
    assert plain.step_products_s(129) == pytest.approx(2 * plain.step_products_s(128))


def test_a_measured_head_has_rates_of_its_own_at_the_first_sizes():
    cost = CostModel(SHAPE, replace(HARDWARE, head_flops=(2e12, 6e13)))
    assert cost.step_heads_s([1, 100]) == pytest.approx(
        2 * SHAPE.head_params * np.array([1, 100]) / (2e12, 6e13)
    )
    assert cost.step_heads_s(300) == pytest.approx(3 * cost.step_heads_s(100))


def test_shared_reads_spare_what_their_arithmetic_leaves():
    assert COST.spared_frac == 0
    once = CostModel(SHAPE, replace(HARDWARE, shared_reads=True))
    assert once.spared_frac == 1
    # as many seconds of arithmetic as half of a read
    flops = 4 * SHAPE.query_width * SHAPE.num_layers / (once.context_s / 2)
    half = CostModel(SHAPE, replace(HARDWARE, shared_reads=True, shared_attention_flops=flops))
    assert half.spared_frac == pytest.approx(0.5)
    slow = CostModel(SHAPE, replace(HARDWARE, shared_reads=True, shared_attention_flops=1e9))
    assert slow.spared_frac == 0
    paper = CostModel(SHAPE, replace(HARDWARE, shared_reads=True), flavour="paper")
    assert paper.spared_frac == 0
