"""Tables of several runs, and of a plan against its run; the last line is JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

import typer
from rich.table import Table

from blendrun.cli.plan_table import console
from blendrun.report.compare import Difference, Outcome, job_differs
from blendrun.report.gap import BOUND, PARTS
from blendrun.report.remedies import SMALL_FRAC, TITLES
from blendrun.report.report import Report, report_values
from blendrun.schedule.plan_record import Plan
from blendrun.units import format_count, format_difference, format_seconds

_Show = Callable[[float], str]


def print_comparison(reports: Sequence[Report], found: Sequence[Difference]) -> None:
    out = console()
    names = [str(report.run_dir) for report in reports]
    for name, difference in zip(names[1:], found, strict=True):
        out.print(f"{name}: {difference.sentence(names[0])}", markup=False)
    if job_differs(reports):
        note = "note: these runs are of different jobs: seconds say little about each other"
        out.print(note, markup=False)
    out.print()
    out.print(_beside(reports, names))
    typer.echo(
        json.dumps(
            {
                "runs": [report_values(report) for report in reports],
                "differences": [
                    {
                        "run": name,
                        "wall_s": difference.wall_s,
                        "largest": difference.largest,
                        **{f"gap_{part}_s": difference.seconds[part] for part in PARTS},
                    }
                    for name, difference in zip(names[1:], found, strict=True)
                ],
            },
            allow_nan=False,
        )
    )


def print_against(
    report: Report, plan: Plan, path: str, outcomes: Sequence[Outcome], in_range: bool | None
) -> None:
    out = console()
    low, high = (
        format_seconds(s) for s in (plan.times.predicted_low_s, plan.times.predicted_high_s)
    )
    took_s = next(o.happened for o in outcomes if o.name == "predicted_s")
    came = "nothing ran yet"
    if took_s is not None:
        came = f"the run took {format_seconds(took_s)}, {'in' if in_range else 'out of'} that range"
    out.print(f"{path} predicted {low} to {high} without loading: {came}", markup=False)
    if plan.job_id != report.plan.job_id:
        out.print("note: the plan is of another job", markup=False)
    ranks = report.manifest.environment.get("dp", plan.dp)
    if ranks != plan.dp:
        out.print(f"note: the plan is for dp {plan.dp}, the run has dp {ranks}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("", "plan", "run", "run / plan"):
        table.add_column(name, justify="right" if name else "left")
    for outcome in outcomes:
        show = format_seconds if outcome.unit == "s" else format_count
        table.add_row(
            _NAMES[outcome.name],
            show(outcome.planned),
            "" if outcome.happened is None else show(outcome.happened),
            "" if outcome.ratio is None else f"{outcome.ratio:.2f}",
        )
    out.print(table)
    line = {
        "run": str(report.run_dir),
        "plan": path,
        "in_range": in_range,
        "outcomes": [{**asdict(outcome), "ratio": outcome.ratio} for outcome in outcomes],
    }
    typer.echo(json.dumps(line, allow_nan=False))


_NAMES = {
    "requests": "requests answered",
    "prompt_tokens": "prompt tokens",
    "computed_prompt_tokens": "prompt tokens computed",
    "output_tokens": "output tokens",
    "compute_s": "compute, prefixes once",
    "memory_s": "KV reads",
    "practical_s": "practical optimum",
    "predicted_s": "time, without loading",
}


def _beside(reports: Sequence[Report], names: Sequence[str]) -> Table:
    """A column for each run, and for two of them one for what differs."""
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    of_two = len(reports) == 2
    if of_two:
        table.add_column("difference", justify="right", no_wrap=True)

    def add(title: str, values: Sequence[float], show: _Show, show_difference: _Show) -> None:
        differs = [show_difference(values[1] - values[0])] if of_two else []
        table.add_row(title, *map(show, values), *differs)

    table.add_row("policy", *(str(report_values(report)["policy"]) for report in reports))
    metrics = [report.metrics for report in reports]
    add("total tokens/s", [m.total_tokens_per_s for m in metrics], "{:,.0f}".format, _signed)
    add("sharing achieved", [m.sharing_frac for m in metrics], "{:.1%}".format, _points)
    add("requests at once", [m.mean_running for m in metrics], "{:,.0f}".format, _signed)
    add("preemptions", [m.preemptions for m in metrics], "{:,.0f}".format, _signed)
    gaps = [report.gap for report in reports if report.gap is not None]
    for part in PARTS:
        if any(abs(gap.part_of_wall(part)) >= SMALL_FRAC for gap in gaps):
            seconds = [gap.seconds[part] for gap in gaps]
            add(TITLES[part], seconds, format_seconds, format_difference)
        if part == BOUND[-1]:
            best = [gap.practical_s for gap in gaps]
            add("= practical optimum", best, format_seconds, format_difference)
    add("= wall time", [gap.wall_s for gap in gaps], format_seconds, format_difference)
    return table


def _signed(count: float) -> str:
    return f"{count:+,.0f}" if round(count) else "0"


def _points(frac: float) -> str:
    """Of a difference of shares."""
    return f"{100 * frac:+z.1f} points"
