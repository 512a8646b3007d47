"""What is made of measured times; the times themselves are the machine's."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.engine import (
    measured_attention,
    measured_overlap,
    measured_rates,
    measured_steps,
    stopwatch,
)
from blendrun.engine.calibration import as_profile, measured_profile, with_overheads
from blendrun.engine.measured_attention import AttentionRates
from blendrun.engine.measured_overlap import Together, measure_together
from blendrun.engine.measured_rates import MeasuredRates
from blendrun.engine.measured_steps import (
    Overheads,
    fit_overheads,
    least_squares,
)
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.schedule.step_job import steering
from engine.test_decoder import load_decoder
from tiny_models import make_checkpoint

COST = CostModel(
    ModelShape.load("configs/models/smollm2-135m.toml"),
    replace(HardwareProfile.load("cpu"), gemm_tokens=(1, 512), gemm_flops=(5e9, 3e11)),
)


def steps(seconds) -> pa.Table:
    """40 steps of decodes that take what `seconds` says of (tokens, outputs), and products."""
    rng = np.random.default_rng(0)
    # without prompts there is no attention within them
    tokens = rng.integers(1, 500, 40)
    outputs = rng.integers(0, 60, 40)
    products_s = COST.step_products_s(tokens) + COST.step_heads_s(outputs)
    columns = {name: np.zeros(40) for name in STEP_SCHEMA.names}
    columns |= {
        "decode_tokens": tokens,
        "output_tokens": outputs,
        "step_s": products_s + seconds(tokens, outputs),
    }
    return pa.table(columns)


NO_READS = np.zeros(40)


def test_costs_of_steps_tokens_and_outputs_are_told_apart():
    table = steps(lambda tokens, outputs: 2e-3 + 3e-5 * tokens + 4e-5 * outputs)
    made = fit_overheads(table, NO_READS, COST)
    assert (made.step_s, made.token_s, made.output_s) == pytest.approx((2e-3, 3e-5, 4e-5))
    assert made.unclear == ()


def test_a_few_disturbed_steps_do_not_move_costs():
    table = steps(lambda tokens, outputs: 2e-3 + 3e-5 * tokens + 4e-5 * outputs)
    step_s = table["step_s"].to_numpy().copy()
    step_s[[5, 20]] *= 3
    table = table.set_column(table.column_names.index("step_s"), "step_s", pa.array(step_s))
    made = fit_overheads(table, NO_READS, COST)
    assert (made.step_s, made.token_s, made.output_s) == pytest.approx((2e-3, 3e-5, 4e-5))


def test_no_cost_comes_out_below_zero_and_the_others_are_kept():
    table = steps(lambda tokens, outputs: 1e-3 + 3e-5 * tokens - 1e-6 * outputs)
    made = fit_overheads(table, NO_READS, COST)
    assert made.output_s == 0
    assert made.step_s == pytest.approx(1e-3, rel=0.1)
    assert made.token_s == pytest.approx(3e-5, rel=0.1)
    assert made.unclear == ("output_overhead_s",)


def test_costs_that_always_come_together_are_said_to_be_unclear():
    tokens = np.full(30, 64.0)
    found, error = least_squares(np.stack([np.ones(30), tokens, tokens], axis=1), 0.01 * tokens)
    assert np.isinf(error).all()
    assert found @ [1, 64, 64] == pytest.approx(0.64)


def test_the_fit_is_the_best_without_negative_costs():
    rng = np.random.default_rng(2)
    for _ in range(20):
        causes, effects = rng.random((12, 3)), rng.normal(size=12)
        found, _ = least_squares(causes, effects)
        gradient = causes.T @ (causes @ found - effects)
        assert (found >= 0).all()
        # Karush-Kuhn-Tucker: no way down for what is used, only up for what is left at 0
        assert gradient[found > 0] == pytest.approx(0, abs=1e-9)
        assert (gradient[found == 0] >= -1e-9).all()


def together(*rounds: tuple[float, float]) -> Together:
    products, reads = zip(*rounds, strict=True)
    return Together(products, reads)


@pytest.mark.parametrize(
    ("rounds", "exponent"),
    [
        ([(0.5, 0.5)] * 5, 1.0),
        ([(0.57, 0.55)] * 5, 1.0),  # threads that wait less for each other
        ([(0.4, 0.5), (0.9, 0.9), (0.5, 0.55), (0.8, 0.8), (0.5, 0.5)], 1.0),  # noise
        ([(0.5**0.5, 0.5**0.5)] * 5, 2.0),
        ([(0.9, (1 - 0.9**3) ** (1 / 3))] * 5, 3.0),
        ([(1.0, 1.0)] * 5, 8.0),
    ],
)
def test_overlap_is_what_both_at_once_gain_beyond_noise(
    rounds: list[tuple[float, float]], exponent: float
):
    measured = together(*rounds)
    assert measured.exponent == pytest.approx(exponent, abs=0.02)
    assert measured.overlaps == (exponent > 1)


def rates(both: Together | None) -> MeasuredRates:
    return MeasuredRates((1, 512), (1e9, 3e11), (1e9,), AttentionRates(2e10, 2e11, 1e11), both)


def test_a_machine_without_gain_is_said_not_to_overlap_and_runs_full_steps():
    profile = as_profile(rates(together(*[(0.52, 0.53)] * 4)), "tiny")
    assert (profile.overlap, profile.overlap_exponent) == (False, 1.0)
    assert "no gain worth having" in profile.sources["overlap"]
    assert "1.05 times" in profile.sources["overlap"]
    cost = replace(COST, hardware=profile)
    assert steering("two lists", "auto", cost, True).budget == "fixed"
    other = replace(COST, hardware=as_profile(rates(together(*[(0.9, 0.9)] * 4)), "tiny"))
    assert other.hardware.overlap
    assert steering("two lists", "auto", other, True).budget == "ratio"


def test_lists_are_one_where_nothing_overlaps_unless_all_fits_in_memory():
    serial = replace(COST, hardware=as_profile(rates(None), "tiny"))
    assert not serial.hardware.overlaps
    assert steering("two lists", "auto", serial, True).admission == "one list"
    assert steering("two lists", "auto", serial, True, all_fits=True).admission == "two lists"
    assert steering("two-ended", "auto", serial, True).admission == "two-ended"
    overlapping = replace(COST, hardware=as_profile(rates(together(*[(0.9, 0.9)] * 4)), "tiny"))
    assert steering("two lists", "auto", overlapping, True).admission == "two lists"


def test_one_core_has_nothing_to_overlap():
    profile = as_profile(rates(None), "tiny")
    assert not profile.overlaps
    assert "one core" in profile.sources["overlap"]


def test_measured_products_are_those_that_the_cost_model_counts(tmp_path: Path):
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    folder = make_checkpoint(tmp_path, "Qwen3MoeForCausalLM", mlp_only_layers=[1], **sizes)
    shape = ModelShape.from_hf_config(json.loads((folder / "config.json").read_text()), "tiny")
    groups = measured_rates.products_of(load_decoder(folder))
    norms = 2 * (2 * shape.hidden_size + 2 * shape.head_dim) + shape.hidden_size
    assert sum(group.num_params for group in groups) == shape.body_params - norms


def test_tokens_of_a_measured_step_choose_their_experts_apart():
    group = measured_rates.Alternatives(torch.zeros(16, 3, 5), per_token=4)
    assert group.num_params == 4 * 15
    for tokens in (1, 3, 200):
        rows = group.num_rows(tokens)
        assert sum(rows) == 4 * tokens
        assert max(rows) <= tokens
    assert min(rows) > 0
    assert measured_rates.Alternatives([torch.zeros(3, 5)]).num_rows(9) == [9]
    assert sum(row > 0 for row in group.num_rows(3)) > 4


def test_unclear_costs_are_marked_in_the_profile():
    found = Overheads(1e-3, 0.0, 2e-5, ("token_overhead_s",))
    profile = with_overheads(as_profile(rates(None), "tiny"), found)
    assert profile.unclear == ("token_overhead_s",)
    assert "NOT CLEAR" in profile.sources["token_overhead_s"]
    assert "NOT CLEAR" not in profile.sources["step_overhead_s"]


def test_halves_run_at_once_and_a_failure_in_one_ends_both(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measured_overlap, "ROUND_S", 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    before = os.sched_getaffinity(0)
    measured = measure_together(lambda: None, lambda: None)
    assert measured is not None
    assert len(measured.gains) == measured_overlap.ROUNDS
    assert os.sched_getaffinity(0) == before
    main = threading.get_ident()

    def fails_elsewhere() -> None:
        if threading.get_ident() != main:
            raise RuntimeError("the other half")

    with pytest.raises((RuntimeError, threading.BrokenBarrierError)):
        measure_together(lambda: None, fails_elsewhere)


def test_a_model_is_measured_into_a_profile_that_can_be_used(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stopwatch, "MEASURE_S", 0.0)
    monkeypatch.setattr(measured_overlap, "ROUND_S", 0.0)
    monkeypatch.setattr(measured_attention, "CACHED_TOKENS", 8 * 1024)
    monkeypatch.setattr(measured_steps, "_MOST_REQUESTS", 6)
    profile = measured_profile(str(checkpoint), ExecuteSettings(), lambda _: None)
    assert profile.calibrated
    assert profile.gemm_tokens == measured_rates.PRODUCT_TOKENS
    assert min(*profile.gemm_flops, *profile.head_flops) > 0
    assert profile.shared_reads
    assert profile.shared_attention_flops is not None
    assert profile.compute_flops == max(profile.gemm_flops)
    assert profile.step_overhead_s + profile.token_overhead_s + profile.output_overhead_s > 0
    shape = ModelShape.from_hf_config(json.loads((checkpoint / "config.json").read_text()), "tiny")
    assert CostModel(shape, profile).step_products_s(700) > 0
