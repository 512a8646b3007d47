"""Axes of pictures: round times and plain numbers, each label once."""

import pytest
from matplotlib.figure import Figure

from blendrun.report.picture import log_axes, time_ticks


def labels(longest_s: float) -> list[str]:
    axes = Figure().subplots()
    axes.set_xlim(0, longest_s)
    time_ticks(axes)
    at_s = [at for at in axes.xaxis.get_majorticklocs() if 0 <= at <= longest_s]
    return [axes.xaxis.get_major_formatter()(at) for at in at_s]


@pytest.mark.parametrize(
    ("longest_s", "some"),
    [
        (0.0031, ["0 s", "0.0005 s", "0.001 s"]),
        (7.9, ["0 s", "1.5 s", "3 s"]),
        (100, ["0 s", "20 s", "40 s", "1 min", "1 min 20 s"]),
        (1579, ["0 s", "5 min", "10 min"]),
        (3.2 * 3600, ["0 s", "30 min", "1 h", "1 h 30 min"]),
        (20 * 86400.0, ["0 s"]),
    ],
)
def test_times_are_round_and_differ(longest_s: float, some: list[str]):
    found = labels(longest_s)
    assert found[: len(some)] == some
    assert 3 <= len(found) == len(set(found)) <= 9


@pytest.mark.parametrize(("low", "high", "least"), [(0.6, 7, 3), (25, 90, 3), (0.8, 2e4, 4)])
def test_numbers_of_logarithmic_axes_are_plain(low: float, high: float, least: int):
    axes = Figure().subplots()
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    log_axes(axes)
    major, minor = axes.xaxis.get_major_formatter(), axes.xaxis.get_minor_formatter()
    shown = [major(at) for at in axes.xaxis.get_majorticklocs() if low <= at <= high]
    assert least <= len(shown) == len(set(shown)) <= 8
    assert all(float(text.replace(",", "")) > 0 for text in shown)
    assert {minor(at) for at in axes.xaxis.get_minorticklocs()} <= {""}
