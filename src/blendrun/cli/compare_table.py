"""Tables of several runs, and of a plan against its run; the last line is JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.table import Table

from blendrun.cli.plan_table import console
from blendrun.report.compare import Difference, Outcome, job_differs
from blendrun.report.gap import BOUND, PARTS
from blendrun.report.remedies import TITLES
from blendrun.report.report import Report, report_values
from blendrun.schedule.plan_record import Plan
from blendrun.units import format_count, format_seconds


def print_comparison(reports: Sequence[Report], found: Sequence[Difference]) -> None:
    out = console()
    names = [str(report.run_dir) for report in reports]
    for name, difference in zip(names[1:], found, strict=True):
        out.print(f"{name}: {difference.sentence(names[0])}", markup=False)
    if job_differs(reports):
        out.print("note: these runs are of different jobs", markup=False)
    out.print()
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for report_row in _figures(reports):
        table.add_row(*report_row)
    gaps = [report.gap for report in reports if report.gap is not None]
    for part in PARTS:
        if any(abs(gap.part_of_wall(part)) >= 5e-4 for gap in gaps):
            table.add_row(TITLES[part], *(_seconds(gap.seconds[part]) for gap in gaps))
        if part == BOUND[-1]:
            table.add_row("= practical optimum", *(_seconds(gap.practical_s) for gap in gaps))
    table.add_row("= wall time", *(_seconds(gap.wall_s) for gap in gaps))
    out.print(table)
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
    is_in = (
        "nothing ran yet" if in_range is None else f"the run is {'in' if in_range else 'out of'}"
    )
    out.print(f"{path} predicted {low} to {high}: {is_in} that range", markup=False)
    if plan.job_id != report.plan.job_id:
        out.print("note: the plan is of another job", markup=False)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("", "planned", "happened", "of the plan"):
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


def _figures(reports: Sequence[Report]) -> list[list[str]]:
    return [
        ["policy", *(str(report_values(report)["policy"]) for report in reports)],
        ["total tokens/s", *(f"{report.metrics.total_tokens_per_s:,.0f}" for report in reports)],
        ["sharing achieved", *(f"{report.metrics.sharing_frac:.1%}" for report in reports)],
        ["requests at once", *(f"{report.metrics.mean_running:,.0f}" for report in reports)],
        ["preemptions", *(f"{report.metrics.preemptions:,}" for report in reports)],
    ]


def _seconds(seconds: float) -> str:
    text = format_seconds(abs(seconds))
    return f"-{text}" if seconds < 0 and text != "0.00 s" else text
