import os
from pathlib import Path

import pytest

from blendrun.cost import machine


def fake_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_gpus_are_those_that_the_driver_tool_lists(tmp_path, monkeypatch: pytest.MonkeyPatch):
    fake_smi(tmp_path, "echo 'NVIDIA A'; echo 'NVIDIA B'", monkeypatch)
    assert machine.gpu_names() == ["NVIDIA A", "NVIDIA B"]


def test_a_driver_tool_that_fails_means_no_gpu(tmp_path, monkeypatch: pytest.MonkeyPatch):
    fake_smi(tmp_path, "echo 'driver not loaded'; exit 9", monkeypatch)
    assert machine.gpu_names() == []


def test_no_driver_tool_means_no_gpu(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu_names() == []


def test_cores_are_those_this_process_may_use():
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)


def test_a_container_limit_bounds_the_available_memory(tmp_path, monkeypatch: pytest.MonkeyPatch):
    limit, use = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000\n")
    use.write_text("2000\n")
    monkeypatch.setattr(machine, "_CGROUP_FILES", ((limit, use),))
    assert machine.available_memory_bytes() == 3000
    limit.write_text("max\n")
    assert machine.available_memory_bytes() > 3000
