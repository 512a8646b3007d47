"""Densities beside the job's own."""

import pytest

from blendrun.report.density_steps import density_step


@pytest.mark.parametrize(
    ("density", "job", "step"),
    [
        (1.0, 1.0, 0),
        (1.2, 1.0, 0),
        (2.5, 2.0, 1),
        (4.0, 2.0, 2),
        (1.0, 2.0, -2),
        (0.4, 2.0, -3),
        (99.0, 2.0, 4),
        (0.01, 2.0, -4),
        (0.0, 2.0, -4),
        (None, 2.0, 4),
        (None, None, 0),
        (0.0, 0.0, 4),
    ],
)
def test_steps_are_ratios_to_the_job(density: float | None, job: float | None, step: int):
    assert density_step(density, job) == step
