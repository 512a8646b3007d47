"""The pictures of a run's page; each title says what the picture shows."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from blendrun.report.gap import Gap
from blendrun.report.picture import (
    Picture,
    cells,
    from_zero,
    legend,
    log_axes,
    picture,
    time_axis,
    time_ticks,
)
from blendrun.report.priced_steps import Lane, PricedSteps
from blendrun.report.remedies import Facts
from blendrun.report.spans import Spans, attempt_starts
from blendrun.report.themed_svg import SERIES, SOFT
from blendrun.tree.annotate import Float64
from blendrun.units import GIGA, TERA, count_of, format_seconds, format_share

_BLUE, _ORANGE, _GREEN, _RED, _SKY = SERIES


def use_over_time(over: Spans, facts: Facts) -> Picture:
    """Compute above, KV reads below, each as a share of the time."""
    compute, reads = float(over.compute_frac.mean()), float(over.read_frac.mean())
    title = f"Compute was busy {format_share(compute)} of the time, KV reads {format_share(reads)}"
    if compute > 1.005:  # no machine is busy for longer than the time there is
        title = (
            f"Compute was faster than the hardware profile says: priced at {compute:.0%} of the "
            f"time, KV reads at {reads:.0%}"
        )
    note = (
        "Seconds that the cost model gives the steps of a span, over its seconds: products at the "
        "rate of their size, weights read, and prefill attention; and KV reads as the backend "
        "does them. "
    )
    note += (
        "The two can be busy at the same time on this machine."
        if facts.cost.hardware.overlaps
        else "They take turns on this machine: together they fill 100% where nothing else is done."
    )

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, frac, colour, name in (
            (upper, over.compute_frac, _BLUE, "compute"),
            (lower, over.read_frac, _ORANGE, "KV reads"),
        ):
            axes.fill_between(over.middle_s, frac, color=colour, alpha=0.35, lw=0)
            axes.plot(over.middle_s, frac, color=colour, lw=1.2)
            axes.set_ylim(0, max(1.0, float(frac.max()) * 1.05))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            axes.set_ylabel(f"{name}\nbusy")
        time_axis(lower, over)

    return picture("use", title, note, draw, height=3.2)


def requests_over_time(over: Spans, steps: PricedSteps) -> Picture:
    most = int(steps.running.max())
    pages = float((steps.pages_used / np.maximum(steps.num_pages, 1)).max())
    full = f"at most {pages:.0%}" if pages >= 0.01 else "less than 1%"
    title = f"Up to {count_of(most, 'request')} at once; KV pages {full} full"
    note = "Means over spans of time. Pages hold running requests and prefixes that are kept."

    def draw(figure: Figure) -> None:
        upper, middle, lower = figure.subplots(3, 1, sharex=True)
        for axes, values, colour, name in (
            (upper, over.running, _BLUE, "running"),
            (middle, over.waiting, _RED, "waiting"),
        ):
            axes.fill_between(over.middle_s, values, color=colour, alpha=0.35, lw=0)
            axes.plot(over.middle_s, values, color=colour, lw=1.2)
            from_zero(axes, values)
            axes.set_ylabel(f"requests\n{name}")
        lower.fill_between(over.middle_s, over.page_use_frac, color=_GREEN, alpha=0.35, lw=0)
        lower.plot(over.middle_s, over.page_use_frac, color=_GREEN, lw=1.2)
        lower.set_ylim(0, 1.02)
        lower.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        lower.set_ylabel("KV pages\nin use")
        time_axis(lower, over)

    return picture("requests", title, note, draw, height=3.9)


def tokens_over_time(over: Spans, facts: Facts) -> Picture:
    metrics = facts.metrics
    share = metrics.prefill_tokens / max(metrics.prefill_tokens + metrics.decode_tokens, 1)
    per_step = (metrics.prefill_tokens + metrics.decode_tokens) / max(metrics.steps, 1)
    title = (
        f"A step had {per_step:,.0f} tokens on average, {format_share(share)} of them of prompts"
    )
    note = "Mean tokens of the steps in each span of time, stacked."

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        prefill, decode = np.nan_to_num(over.prefill_per_step), np.nan_to_num(over.decode_per_step)
        axes.stackplot(
            over.middle_s, decode, prefill, colors=[_ORANGE, _BLUE], alpha=0.75,
            labels=["decode", "prefill"], lw=0,
        )  # fmt: skip
        from_zero(axes, prefill + decode)
        axes.set_ylabel("tokens of a step")
        legend(axes)
        time_axis(axes, over)

    return picture("tokens", title, note, draw)


def roofline(steps: PricedSteps, facts: Facts) -> Picture:
    """Where the run's steps stand under the machine's two ceilings."""
    cost = facts.cost
    peak = cost.hardware.effective_flops * cost.tp
    bandwidth = cost.hardware.effective_bandwidth * cost.tp
    flops, seconds = steps.work_s * peak, steps.step_s
    weights = cost.step_weight_read_s(steps.prefill_tokens + steps.decode_tokens) * bandwidth
    read = weights + steps.read_s * bandwidth
    kept = (flops > 0) & (seconds > 0)
    x, y = (flops / read)[kept], (flops[kept] / seconds[kept])
    at_peak = float(flops.sum() / seconds.sum() / peak) if seconds.sum() else 0.0
    title = f"Steps reached {format_share(at_peak)} of the machine's arithmetic on average"
    note = (
        "Each dot stands for steps with about this many FLOP per byte of weights and KV; its size "
        "is their share of the time. Left of the corner of the line reading limits, right of it "
        "arithmetic."
    )
    if facts.cost.hardware.overlaps:
        note += (
            " The cost model lets KV reads go on while weights are read, so that simulated steps "
            "can lie above the line."
        )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        px, py, weight = cells(x, y, seconds[kept])
        low = min(float(px.min(initial=peak / bandwidth)), peak / bandwidth) / 2
        high = max(float(px.max(initial=peak / bandwidth)), peak / bandwidth) * 2
        reach = np.geomspace(low, high, 100)
        unit, name = (TERA, "TFLOP/s") if peak >= TERA else (GIGA, "GFLOP/s")
        axes.plot(reach, np.minimum(reach * bandwidth, peak) / unit, color=SOFT, lw=1.5)
        axes.scatter(px, py / unit, s=4 + 250 * weight, color=_BLUE, alpha=0.6, lw=0)
        axes.set_ylim(
            float(py.min(initial=peak)) / 2 / unit, max(peak, float(py.max(initial=0))) * 3 / unit
        )
        axes.set_xlim(low / 1.2, high * 1.2)
        log_axes(axes)
        axes.set_xlabel("FLOP per byte of weights and KV")
        axes.set_ylabel(name)
        axes.annotate(
            f"line: {bandwidth / GIGA:,.0f} GB/s, {peak / unit:,.0f} {name}",
            (0.01, 0.98), xycoords="axes fraction", va="top", color=SOFT,
        )  # fmt: skip

    return picture("roofline", title, note, draw)


def output_lengths(expected: Float64, true: Float64) -> Picture:
    """Expected against true output tokens of every request."""
    ratio = float(expected.sum() / max(true.sum(), 1))
    within = float(np.mean((expected <= 2 * true) & (true <= 2 * expected)))
    title = (
        f"Expected outputs were {ratio:.2f} times the true ones; "
        f"{format_share(within)} of requests within a factor of 2"
    )
    note = (
        "Each dot stands for requests; its size is their number. On the line, the plan expected "
        "what came. What the run learned while it ran is not in it."
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        px, py, weight = cells(np.maximum(true, 1), np.maximum(expected, 1), np.ones(len(true)))
        top = max(float(px.max()), float(py.max())) * 1.5
        axes.plot([0.7, top], [0.7, top], color=SOFT, lw=1.2)
        axes.scatter(px, py, s=4 + 250 * weight, color=_ORANGE, alpha=0.6, lw=0)
        axes.set_xlim(0.6, top * 1.2)
        axes.set_ylim(0.6, top * 1.2)
        log_axes(axes)
        axes.set_xlabel("true output tokens")
        axes.set_ylabel("expected output tokens")

    return picture("lengths", title, note, draw)


def rank_chart(steps: PricedSteps, gap: Gap) -> Picture:
    """Ranks, or attempts, as bars over the clock."""
    begin = attempt_starts(steps)
    lanes = steps.lanes
    ranks = len({lane.rank for lane in lanes})
    names = [_lane_name(lane, ranks > 1, len(begin) > 1) for lane in lanes]
    title = f"The run took {count_of(len(begin), 'attempt')}"
    if len(begin) == 1:
        ends = [float(steps.end_s[lane.steps].max()) for lane in lanes]
        late_s = format_seconds(max(ends) - min(ends))
        first, last = names[int(np.argmin(ends))], names[int(np.argmax(ends))]
        title = f"{last.capitalize()} ended last, {late_s} after {first}, which ended first"
    note = (
        "From the first step of each to its last. In the ramp-up fewer requests run than on "
        "average; in the tail no more come in."
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        colours = {-1: _SKY, 0: _BLUE, 1: _ORANGE}
        for row, lane in enumerate(lanes):
            phase = gap.phase[lane.steps]
            starts, stops = steps.start_s[lane.steps], steps.end_s[lane.steps]
            for kind, colour in colours.items():
                mine = np.flatnonzero(phase == kind)
                if len(mine):
                    left = float(starts[mine[0]])
                    width = float(stops[mine[-1]]) - left
                    axes.barh(row, width, left=left + begin[lane.attempt], color=colour, lw=0)
        axes.set_yticks(range(len(lanes)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        time_ticks(axes)
        for kind, name in ((-1, "ramp-up"), (0, "middle"), (1, "tail")):
            axes.barh(0, 0, color=colours[kind], label=name)
        legend(axes)

    return picture("ranks", title, note, draw, height=min(1.2 + 0.3 * len(lanes), 9))


def _lane_name(lane: Lane, of_ranks: bool, of_attempts: bool) -> str:
    names = []
    if of_attempts:
        names.append(f"attempt {lane.attempt + 1}")
    if of_ranks:
        names.append(f"rank {lane.rank}")
    return ", ".join(names)
