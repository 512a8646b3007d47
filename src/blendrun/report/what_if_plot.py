"""The picture of a grid of machines: time against price, the best ones joined."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from blendrun.report.palette import COLOURS, MARKERS
from blendrun.report.what_if import Point
from blendrun.units import format_seconds


def plot_points(points: Sequence[Point], price_unit: str, about: str, path: Path) -> None:
    """Save a picture of the points that run; its title says what the front offers.

    Args:
        about: which job, for the title.
    """
    figure = Figure(figsize=(8, 5.2), layout="constrained")
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
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axes.set_xlabel("time for the whole job")
    axes.set_ylabel(price_unit)
    if best:
        ends = " or ".join(
            f"{format_seconds(p.seconds or 0)} for {p.price:,.2f}"
            for p in dict.fromkeys((best[0], best[-1]))
        )
        about = f"{about}\nbest: {ends}"
    axes.set_title(about)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(path)
