"""How a picture of a page is made: its frame, axes in units that people read, points pooled."""

import html
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    MultipleLocator,
    NullFormatter,
)

from blendrun.report.spans import Spans
from blendrun.report.themed_svg import STYLE, themed_svg
from blendrun.tree.annotate import Float64
from blendrun.units import format_count, format_seconds

_CELLS = 60  # of a picture of points, each way


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    title: str  # the finding
    svg: str
    note: str  # how to read it


def picture(
    name: str, title: str, note: str, draw: Callable[[Figure], None], height: float = 2.7
) -> Picture:
    with rc_context(STYLE):
        figure = Figure(figsize=(6, height), layout="constrained")
        draw(figure)
    return Picture(name, title, themed_svg(figure, name, html.escape(title)), note)


def cells(x: Float64, y: Float64, weight: Float64) -> tuple[Float64, Float64, Float64]:
    """Points as at most a few thousand: those of a cell of a logarithmic grid are one.

    The last are weights, the largest 1.
    """
    if not len(x):
        nothing = np.zeros(0)
        return nothing, nothing, nothing
    lx, ly = np.log(x), np.log(y)

    def places(values: Float64) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        low, high = float(values.min()), float(values.max())
        return ((values - low) / ((high - low) or 1.0) * (_CELLS - 1e-6)).astype(np.int64)

    cell = places(lx) * (_CELLS + 1) + places(ly)
    total = np.bincount(cell, weight)
    used = np.flatnonzero(total)
    means = (np.exp(np.bincount(cell, weight * of)[used] / total[used]) for of in (lx, ly))
    cx, cy = means
    return cx, cy, total[used] / total.max()


def time_axis(axes: Axes, over: Spans) -> None:
    axes.set_xlim(0, float(over.middle_s[-1] + over.middle_s[0]))
    time_ticks(axes)


def time_ticks(axes: Axes) -> None:
    """Few, at times that people count in, none of which reads like another."""
    longest_s = axes.get_xlim()[1]
    step_s = next((step_s for step_s in _ROUND_S if longest_s <= 7 * step_s), None)
    locator = MultipleLocator(step_s) if longest_s > 60 and step_s else MaxNLocator(7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: _time(at_s)))


_ROUND_S = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def _time(at_s: float) -> str:
    if at_s < 60:
        return f"{at_s:.6g} s"
    if at_s % 3600 == 0 and at_s < 48 * 3600:
        return f"{at_s / 3600:.0f} h"
    if at_s % 60 == 0 and at_s < 3600:
        return f"{at_s / 60:.0f} min"
    return format_seconds(at_s)


def log_axes(axes: Axes) -> None:
    """Logarithmic, with plain numbers; over less than two decades more of them to each."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        subs: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7)
        if high > 10 * low:
            subs = (1, 2, 5) if high < 100 * low else (1,)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        axis.set_minor_formatter(NullFormatter())


def from_zero(axes: Axes, values: Float64) -> None:
    """Counts from 0 up."""
    axes.set_ylim(0, max(float(np.nanmax(values)) * 1.08, 1.0))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
