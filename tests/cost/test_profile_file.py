from dataclasses import replace
from pathlib import Path

import pytest

from blendrun.config import shipped_names
from blendrun.cost import machine
from blendrun.cost.hardware import HardwareProfile, measured_profile_path
from blendrun.cost.profile_file import write_profile
from blendrun.errors import InputError

MEASURED = HardwareProfile(
    name="this-cpu",
    kind="cpu",
    compute_flops=3e11,
    memory_bandwidth=2.5e10,
    memory_bytes=1e10,
    overlap_exponent=1.0,
    overlap=False,
    shared_reads=True,
    calibrated=True,
    model='a "model", bfloat16',
    processor="Some CPU (TM) 9 @ 2.00GHz",
    cores=2,
    gemm_tokens=(1, 64, 512),
    gemm_flops=(8e9, 1.5e11, 3e11),
    head_flops=(9e9, 2e11),
    attention_flops=2e11,
    shared_attention_flops=1e11,
    unclear=("step_overhead_s",),
    step_overhead_s=1.5e-4,
    token_overhead_s=2e-5,
    output_overhead_s=1e-5,
    sources={"gemm_flops": 'measured: "products"'},
)


def test_written_profile_is_read_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 10**10)
    path = tmp_path / "own.toml"
    write_profile(MEASURED, path, "a comment")
    assert replace(HardwareProfile.load(str(path)), reason="") == MEASURED


@pytest.mark.parametrize("name", [name for name in shipped_names("hardware") if name != "cpu"])
def test_shipped_profiles_survive_being_written(name: str, tmp_path: Path):
    profile = HardwareProfile.load(name)
    write_profile(profile, tmp_path / "own.toml", "a comment")
    again = HardwareProfile.load(str(tmp_path / "own.toml"))
    assert replace(again, reason="") == replace(profile, reason="")


def test_measured_profile_of_this_cpu_goes_before_the_shipped_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpu_names", list)
    before = HardwareProfile.load("auto")
    write_profile(MEASURED, measured_profile_path(), "a comment")
    try:
        after = HardwareProfile.load("auto")
        assert (before.calibrated, after.calibrated) == (False, True)
        assert after.reason.endswith(f"measured with {MEASURED.model}")
        assert HardwareProfile.load("cpu").name == "cpu"
        assert not HardwareProfile.load("cpu").calibrated
        cores = machine.usable_cores() + 1
        monkeypatch.setattr(machine, "usable_cores", lambda: cores)
        assert not HardwareProfile.load("this-cpu").calibrated
    finally:
        measured = measured_profile_path().parent
        for path in measured.glob("*.toml"):
            path.unlink()


@pytest.mark.parametrize(
    "broken",
    [
        {"gemm_tokens": (1, 64)},
        {"gemm_tokens": (64, 1, 512)},
        {"gemm_flops": (1e9, 0.0, 1e9)},
        {"attention_flops": 0.0},
        {"token_overhead_s": -1.0},
        {"shared_attention_flops": 0.0},
        {"head_flops": (1e9,) * 4},
        {"head_flops": (0.0,)},
        {"overlap": False, "overlap_exponent": 2.0},
    ],
)
def test_measured_figures_that_cannot_be_are_refused(broken: dict):
    with pytest.raises(InputError):
        replace(MEASURED, **broken)
