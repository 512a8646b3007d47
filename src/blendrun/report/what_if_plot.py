"""The picture of a grid of machines: time against price, the best ones joined."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from blendrun.report.palette import COLOURS, MARKERS
from blendrun.report.what_if import Point
from blendrun.units import format_seconds


def plot_points(points: Sequence[Point], price_unit: str, title: str, path: Path) -> None:
    """Save an SVG of the points that run."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(p.hardware for p in points))
    for number, name in enumerate(names):
        ran = [(p.seconds, p.price) for p in points if p.hardware == name and p.seconds is not None]
        if ran:
            axes.scatter(
                *zip(*ran, strict=True),
                label=name,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
            )
    best = sorted((p for p in points if p.is_best), key=lambda p: p.seconds or 0.0)
    front = [(p.seconds or 0.0, p.price or 0.0) for p in best]
    axes.plot(*zip(*front, strict=True), color="#555555", lw=1, zorder=0)
    for point in best:
        axes.annotate(
            f"tp {point.tp}, dp {point.dp}",
            (point.seconds, point.price),
            textcoords="offset points",
            xytext=(6, 6),
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axes.xaxis.set_minor_formatter(lambda _value, _: "")
    axes.yaxis.set_minor_formatter(lambda _value, _: "")
    axes.set_xlabel("time for the whole job")
    axes.set_ylabel(price_unit)
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(path)
