"""What is made of products and reads measured alone and at once; the times are the device's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from blendrun.cost.hardware import HardwareProfile, measured_gpu_path
from blendrun.cost.profile_file import write_profile
from blendrun.engine import measured_interference, stopwatch
from blendrun.engine.calibration import as_gpu_profile, with_splits
from blendrun.engine.decoder import Decoder
from blendrun.engine.measured_interference import (
    Interference,
    measure_interference,
    overlap_exponent,
    split_table,
)
from blendrun.engine.weights import random_weights
from tiny_devices import stand_in_compute
from tiny_lanes import InlineLanes, OneKind
from tiny_models import tiny_config

# products 1.0 s whole and 1.2 s in parts, reads 1.0 s
STEP = Interference(512, 65536, 0.0, 1.0, 1.2, 1.0, 1.6)
MEASURED = [
    STEP,
    replace(STEP, memory_frac=0.25, together_s=1.25),
    replace(STEP, memory_frac=0.5, together_s=2.5),
    replace(STEP, tokens=64, whole_s=0.1, parts_s=0.2, together_s=1.2),
]


def test_the_gain_of_a_step_has_the_cost_of_dividing_it_and_the_factor_has_not():
    assert STEP.gain == pytest.approx(2.0 / 1.6)
    assert STEP.factor == pytest.approx(2.2 / 1.6)


def test_the_exponent_is_that_of_the_norm_of_both():
    both = (1.2**3 + 1.0**3) ** (1 / 3)
    assert replace(STEP, together_s=both).exponent == pytest.approx(3.0, abs=0.02)
    assert replace(STEP, together_s=2.2).exponent == 1.0
    assert MEASURED[3].exponent == 1.0  # too few products to tell


def test_each_step_keeps_its_best_division():
    table = split_table(MEASURED)
    assert table.split_tokens == (64, 512)
    assert table.split_memory_fracs == (0.0, 0.25)
    assert table.split_gains == (0.917, 1.6)
    assert overlap_exponent(MEASURED) == MEASURED[1].exponent > STEP.exponent > 1


def test_nothing_that_overlaps_is_an_exponent_of_one():
    assert overlap_exponent([replace(STEP, together_s=2.3)]) == 1.0


def test_a_measured_gpu_is_found_by_its_name(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150 * 10**9)
    profile = as_gpu_profile(HardwareProfile.load("cpu"), properties)
    profile = with_splits(profile, MEASURED)
    assert HardwareProfile.of_gpu("NVIDIA H200").name == "h200"  # the shipped one
    write_profile(profile, measured_gpu_path("NVIDIA H200"), "measured")
    found = HardwareProfile.of_gpu("NVIDIA H200")
    assert (found.name, found.kind, found.memory_bytes) == ("nvidia-h200", "cuda", 1.5e11)
    assert found.split_gains == (0.917, 1.6)
    assert found.overlaps
    assert "2 steps" in found.sources["split_tokens"]
    assert HardwareProfile.of_gpu("NVIDIA Unheard-of") is None


def test_a_device_that_cannot_divide_its_sms_is_measured_without(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(measured_interference, "MEASURE_S", 0.0)
    monkeypatch.setattr(measured_interference, "DECODES", (2,))
    monkeypatch.setattr(measured_interference, "CHUNK_TOKENS", (0, 3))
    config = tiny_config()
    decoder = Decoder(config, random_weights(config, torch.float32))
    lanes = InlineLanes()
    maker = OneKind(lanes)
    monkeypatch.setattr(maker, "divides", lambda: False)
    with torch.inference_mode():
        measured = measure_interference(
            decoder, stand_in_compute().attention, maker, lambda _: None
        )
    assert [(m.tokens, m.context_len, m.memory_frac) for m in measured] == [
        (2, 2048, 0.0),
        (5, 2048, 0.0),
    ]
    assert all(m.together_s > 0 for m in measured)
    assert set(lanes.ran) == {"compute", "memory"}


def test_calls_on_a_device_are_timed_in_batches_between_waits(monkeypatch: pytest.MonkeyPatch):
    clock, calls = [0.0], []
    queued = [0]

    def work() -> None:
        calls.append(1)
        queued[0] += 1
        clock[0] += 1e-6  # to launch

    def wait() -> None:
        clock[0] += 1e-3 * queued[0]  # it runs a millisecond
        queued[0] = 0

    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock[0])
    assert stopwatch.seconds_of(work, wait, 0.1) == pytest.approx(1.001e-3)
    assert len(calls) > 100
