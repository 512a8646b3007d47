"""What is made of measured times; the times themselves are the machine's."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.engine import measured_rates
from blendrun.engine.calibration import measured_profile, overlap_exponent
from blendrun.engine.measured_rates import Together
from blendrun.engine.measured_steps import fit_overheads
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.step_log import STEP_SCHEMA

COST = CostModel(
    ModelShape.load("configs/models/smollm2-135m.toml"),
    replace(HardwareProfile.load("cpu"), gemm_tokens=(1, 512), gemm_flops=(5e9, 3e11)),
)


def steps(seconds) -> pa.Table:
    """40 steps that take what `seconds` says of (tokens, outputs), products and attention."""
    rng = np.random.default_rng(0)
    prefill, decode = rng.integers(0, 500, 40), rng.integers(1, 60, 40)
    outputs = decode + rng.integers(0, 3, 40)
    attention_s = rng.random(40)
    products_s = COST.step_products_s(prefill + decode) + COST.step_heads_s(outputs)
    columns = {name: np.zeros(40) for name in STEP_SCHEMA.names}
    columns |= {
        "prefill_tokens": prefill,
        "decode_tokens": decode,
        "output_tokens": outputs,
        "attention_s": attention_s,
        "step_s": attention_s + products_s + seconds(prefill + decode, outputs),
    }
    return pa.table(columns)


def test_costs_of_steps_tokens_and_outputs_are_told_apart():
    made = fit_overheads(steps(lambda tokens, outputs: 2e-3 + 3e-5 * tokens + 4e-5 * outputs), COST)
    assert (made.step_s, made.token_s, made.output_s) == pytest.approx((2e-3, 3e-5, 4e-5))


def test_no_cost_comes_out_below_zero():
    made = fit_overheads(steps(lambda tokens, outputs: 1e-3 + 3e-5 * tokens - 1e-6 * outputs), COST)
    assert made.output_s == 0
    assert made.token_s == pytest.approx(3e-5, rel=0.1)


@pytest.mark.parametrize(
    ("together", "exponent"),
    [
        (None, 1.0),
        (Together(1.0, 1.0, 2.1), 1.0),
        (Together(1.0, 1.0, 1.95), 1.0),
        (Together(1.0, 1.0, 2**0.5), 2.0),
        (Together(1.0, 0.5, (1 + 0.5**3) ** (1 / 3)), 3.0),
        (Together(1.0, 1.0, 1.0), 8.0),
    ],
)
def test_overlap_is_what_both_at_once_gain(together: Together | None, exponent: float):
    assert overlap_exponent(together) == pytest.approx(exponent, abs=0.02)


def test_a_model_is_measured_into_a_profile_that_can_be_used(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measured_rates, "_MEASURE_S", 0.0)
    monkeypatch.setattr(measured_rates, "_CACHED_TOKENS", 8 * 1024)
    profile = measured_profile(str(checkpoint), ExecuteSettings(), lambda _: None)
    assert profile.calibrated
    assert profile.gemm_tokens == measured_rates.PRODUCT_TOKENS
    assert min(profile.gemm_flops) > 0
    assert profile.compute_flops == max(profile.gemm_flops)
    assert profile.step_overhead_s + profile.token_overhead_s + profile.output_overhead_s > 0
    shape = ModelShape.from_hf_config(json.loads((checkpoint / "config.json").read_text()), "tiny")
    assert CostModel(shape, profile).step_products_s(700) > 0
