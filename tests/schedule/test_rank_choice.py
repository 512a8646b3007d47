"""Ranks chosen automatically: what fits, what is fastest, and what is told of it."""

from pathlib import Path

import pytest

from blendrun.cost import machine
from blendrun.errors import CapacityError, InputError
from tiny_jobs import SHAPE, plan_job

ROWS = [{"prompt_token_ids": [i, *range(200)], "max_tokens": 50} for i in range(40)]


def test_a_model_that_fits_on_one_device_is_not_divided(tmp_path: Path):
    _, plan = plan_job(tmp_path, ROWS * 30, SHAPE, tp="auto", dp="auto", devices=4)
    assert (plan.tp, plan.dp) == (1, 4)
    assert plan.ranks_reason.startswith("fastest on 4 devices")
    assert "tp 2 dp 2" in plan.ranks_reason
    assert "tp 4 dp 1" in plan.ranks_reason
    assert len(plan.ranks) == 4


def test_a_model_that_does_not_fit_is_divided_as_little_as_is_fastest(tmp_path: Path):
    _, plan = plan_job(tmp_path, ROWS, "llama-3.1-70b.toml", tp="auto", dp="auto", devices=8)
    assert plan.tp > 1
    assert plan.tp * plan.dp <= 8
    assert "too little memory with tp 1" in plan.ranks_reason


def test_one_of_both_can_be_given(tmp_path: Path):
    _, plan = plan_job(tmp_path / "a", ROWS, SHAPE, tp=2, dp="auto", devices=8)
    assert (plan.tp, plan.dp) == (2, 4)
    _, plan = plan_job(tmp_path / "b", ROWS, SHAPE, tp="auto", dp=2, devices=8)
    assert plan.dp == 2
    assert plan.tp in (1, 2, 4)


def test_there_are_no_more_ranks_than_requests(tmp_path: Path):
    _, plan = plan_job(tmp_path, ROWS[:1], SHAPE, tp=1, dp="auto", devices=8)
    assert plan.dp == 1


def test_windows_are_planned_for_the_same_ranks(tmp_path: Path):
    rows = ROWS + ROWS[:1]
    _, plan = plan_job(tmp_path, rows, SHAPE, tp=1, dp="auto", devices=4, window=40)
    assert plan.dp == 4
    assert len(plan.windows) == 2


def test_a_cpu_is_one_device(tmp_path: Path):
    _, plan = plan_job(
        tmp_path, ROWS, "smollm2-135m.toml", hardware="this-cpu", tp="auto", dp="auto"
    )
    assert (plan.tp, plan.dp) == (1, 1)


def test_the_gpus_of_this_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpu_names", lambda: ["NVIDIA A100-SXM4-80GB"] * 2 + ["other"])
    _, plan = plan_job(tmp_path, ROWS, SHAPE, tp=1, dp="auto")
    assert plan.dp == 2


def test_without_devices_a_person_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpu_names", list)
    with pytest.raises(InputError, match="how many devices") as caught:
        plan_job(tmp_path, ROWS, SHAPE, tp="auto", dp="auto")
    assert "--devices" in str(caught.value.hint)


def test_what_does_not_fit_on_the_devices_is_refused(tmp_path: Path):
    with pytest.raises(CapacityError, match=r"too little memory .* with tp 1"):
        plan_job(tmp_path, ROWS, "llama-3.1-70b.toml", tp="auto", dp="auto", devices=1)
    with pytest.raises(InputError, match="more than 2 devices"):
        plan_job(tmp_path, ROWS, SHAPE, tp="auto", dp=4, devices=2)
