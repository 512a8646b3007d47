import json
import math
from pathlib import Path

import pytest

from blendrun.config import from_table, read_toml, shipped_config, shipped_names
from blendrun.cost import machine
from blendrun.cost.hardware import HardwareProfile
from blendrun.errors import InputError

OWN = """
name = "own"
kind = "cuda"
compute_flops = 1e14
memory_bandwidth = 1e12
memory_bytes = 1e10
overlap_exponent = 3
"""


def write(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    path.write_text(text)
    return str(path)


def test_every_shipped_profile_loads_under_its_own_name():
    names = shipped_names("hardware")
    assert "cpu" in names
    assert [HardwareProfile.load(name).name for name in names] == names


@pytest.mark.parametrize("name", shipped_names("hardware"))
def test_every_shipped_figure_has_a_source(name: str):
    path = shipped_config("hardware", name)
    assert path is not None
    table = read_toml(path)
    figures = {**table, **table.get("per_core", {})}
    numbers = {key for key, value in figures.items() if isinstance(value, float | int)}
    assert numbers
    assert numbers <= set(table["sources"])


def test_shipped_profiles_say_that_they_are_estimates():
    assert not any(HardwareProfile.load(name).calibrated for name in shipped_names("hardware"))


@pytest.mark.parametrize(
    ("name", "bytes_per_s"),
    [
        ("a100-80gb-sxm", 300e9),
        ("h100-sxm", 450e9),
        ("h200", 450e9),
        ("b200", 900e9),
        ("l40s", 32e9),
        ("rtx-4090", 31.5e9),
    ],
)
def test_gpu_profiles_have_a_link_to_other_ranks(name: str, bytes_per_s: float):
    profile = HardwareProfile.load(name)
    assert profile.interconnect_bandwidth == bytes_per_s
    assert 0 < profile.collective_latency_s < 1e-4


def test_rough_reference_machine_is_the_ideal_one_with_losses():
    ideal, rough = HardwareProfile.load("paper-a100"), HardwareProfile.load("paper-a100-rough")
    assert ideal.effective_flops == 312e12
    assert ideal.effective_bandwidth == 2.039e12
    assert rough.effective_flops == pytest.approx(0.75 * ideal.effective_flops)
    assert rough.effective_bandwidth == pytest.approx(0.85 * ideal.effective_bandwidth)
    assert ideal.kv_memory_bytes == rough.kv_memory_bytes == 60e9
    assert (ideal.overlap_exponent, rough.overlap_exponent) == (4, 3)
    assert (ideal.weight_floor_exponent, rough.weight_floor_exponent) == (math.inf, 2)
    assert (ideal.step_overhead_s, rough.step_overhead_s) == (0, 2e-3)
    assert (ideal.gemm_tile, rough.gemm_tile) == (1, 128)
    assert ideal.chunk_limit == rough.chunk_limit == 2048


def test_cpu_profile_grows_with_usable_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 10**9)
    profiles = []
    for cores in (2, 6):
        monkeypatch.setattr(machine, "usable_cores", lambda cores=cores: cores)
        profiles.append(HardwareProfile.load("cpu"))
    two, six = profiles
    assert (two.compute_flops, two.memory_bandwidth) == (310e9, 50e9)
    assert (six.compute_flops, six.memory_bandwidth) == (930e9, 150e9)
    assert two.memory_bytes == 10**9
    assert two.overlap_exponent == 1
    assert not two.overlaps


def test_auto_takes_the_profile_of_the_gpu_that_the_driver_lists(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpu_names", lambda: ["NVIDIA H200", "NVIDIA H200"])
    profile = HardwareProfile.load("auto")
    assert profile.name == "h200"
    assert "NVIDIA H200" in profile.reason


@pytest.mark.parametrize("gpus", [[], ["NVIDIA Unheard-Of 9"]])
def test_auto_falls_back_to_the_cpu_and_says_why(gpus: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpu_names", lambda: gpus)
    profile = HardwareProfile.load("auto")
    assert profile.kind == "cpu"
    assert (gpus[0] if gpus else "no NVIDIA GPU found") in profile.reason


def test_own_file_is_read_and_efficiencies_scale_its_peaks(tmp_path: Path):
    text = OWN + "compute_efficiency = 0.75\nbandwidth_efficiency = 0.5\n"
    profile = HardwareProfile.load(write(tmp_path, text))
    assert profile.effective_flops == 0.75e14
    assert profile.effective_bandwidth == 0.5e12
    assert profile.overlap_exponent == 3


def test_perfect_overlap_can_be_asked_for(tmp_path: Path):
    text = OWN.replace("overlap_exponent = 3", "overlap_exponent = inf")
    assert math.isinf(HardwareProfile.load(write(tmp_path, text)).overlap_exponent)


def test_what_a_profile_leaves_out_costs_nothing(tmp_path: Path):
    profile = HardwareProfile.load(write(tmp_path, OWN))
    assert profile.kv_memory_bytes is None
    assert math.isinf(profile.weight_floor_exponent)
    assert math.isinf(profile.interconnect_bandwidth)
    assert profile.collective_latency_s == 0


def test_infinite_entries_can_be_written_out(tmp_path: Path):
    lines = "weight_floor_exponent = inf\ninterconnect_bandwidth = inf\nkv_memory_bytes = 5e9\n"
    profile = HardwareProfile.load(write(tmp_path, OWN + lines))
    assert profile.kv_memory_bytes == 5e9
    assert math.isinf(profile.weight_floor_exponent)


@pytest.mark.parametrize("name", shipped_names("hardware"))
def test_table_of_a_profile_is_json_and_gives_it_back(name: str):
    profile = HardwareProfile.load(name)
    table = json.loads(json.dumps(profile.to_table(), allow_nan=False))
    assert from_table(HardwareProfile, table, "table") == profile


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("speed = 1", "unknown key 'speed'"),
        ("gemm_tile = 0", "gemm_tile must be above 0"),
        ("compute_efficiency = 1.5", "compute_efficiency must be in"),
        ("step_overhead_s = -1.0", "step_overhead_s must be 0 or more"),
        ("step_overhead_s = nan", "step_overhead_s must be 0 or more"),
        ("kv_memory_bytes = 0", "kv_memory_bytes must be above 0"),
        ("kv_memory_bytes = inf", "kv_memory_bytes must be above 0"),
        ("weight_floor_exponent = 0.5", "weight_floor_exponent must be 1 or more"),
        ("weight_floor_exponent = nan", "weight_floor_exponent must be 1 or more"),
        ("interconnect_bandwidth = 0", "interconnect_bandwidth must be above 0"),
        ("interconnect_bandwidth = nan", "interconnect_bandwidth must be above 0"),
        ("collective_latency_s = -1e-6", "collective_latency_s must be 0 or more"),
        ("collective_latency_s = inf", "collective_latency_s must be 0 or more"),
        ("chunk_limit = 'all'", "chunk_limit must be int"),
    ],
)
def test_unusable_entries_are_refused(line: str, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        HardwareProfile.load(write(tmp_path, f"{OWN}{line}\n"))


def test_missing_figures_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="missing key 'memory_bandwidth'"):
        HardwareProfile.load(write(tmp_path, OWN.replace("memory_bandwidth = 1e12\n", "")))


def test_unknown_profile_is_refused_with_the_shipped_names():
    with pytest.raises(InputError, match="no hardware profile 'b900'") as caught:
        HardwareProfile.load("b900")
    assert "a100-80gb-sxm" in str(caught.value.hint)
