"""A plan on a measured machine pays for steps that are too small for its best rate."""

from dataclasses import replace

import pytest

from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.profile_file import write_profile
from tiny_jobs import plan_job

ROWS = [{"prompt": f"question {i}", "max_tokens": 40, "output_len": 40} for i in range(4)]


def test_slow_small_steps_lengthen_the_prediction(checkpoint, tmp_path):
    predicted = []
    for slow in (3e11, 1e10):
        profile = replace(
            HardwareProfile.load("cpu"), gemm_tokens=(1, 64, 512), gemm_flops=(slow, slow, 3e11)
        )
        folder = tmp_path / f"{slow:.0f}"
        folder.mkdir()
        write_profile(profile, folder / "own.toml", "a comment")
        _, plan = plan_job(folder, ROWS, checkpoint, hardware=str(folder / "own.toml"))
        predicted.append(plan.times)
    fast, slow = predicted
    assert slow.predicted_s > 2 * fast.predicted_s
    assert slow.practical_s == pytest.approx(fast.practical_s)
