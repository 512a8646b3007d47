"""The screen that `blendrun plan` prints."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from blendrun.schedule.plan_record import Plan
from blendrun.units import format_count, format_seconds


def console() -> Console:
    """For stdout; wide enough not to break lines where it is not a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def figures(rows: list[tuple[str, str]]) -> Table:
    """A table of names and values without lines; two blanks part a value from its note."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value in rows:
        figure, _, note = value.partition("  ")
        table.add_row(name, figure, note)
    return table


def print_plan(plan: Plan, path: Path) -> None:
    counts, times = plan.counts, plan.times
    out = console()
    set_aside = ", ".join(f"{n} {code}" for code, n in counts.rejected_by_code.items())
    lengths = ", ".join(f"{n} from {origin}" for origin, n in counts.lengths_from.items())
    density = "none  no KV is read" if times.density is None else f"{times.density:.2f}"
    rows = [
        ("requests", f"{counts.requests:,}  of {counts.rows:,} rows"),
        ("rows set aside", f"{counts.rejected:,}  {set_aside}"),
        ("prompt tokens", format_count(counts.prompt_tokens)),
        ("unique prompt tokens", format_count(counts.unique_prompt_tokens)),
        ("expected output tokens", f"{format_count(counts.expected_output_tokens)}  {lengths}"),
        ("sharing possible", f"{counts.sharing_possible:.1%}  of the prompt tokens"),
        ("sharing kept", f"{counts.sharing_kept:.1%}  in the planned order"),
        ("T_comp", f"{format_seconds(times.compute_s)}  nothing shared"),
        ("T_comp, shared", format_seconds(times.shared_compute_s)),
        ("T_mem", f"{format_seconds(times.memory_s)}  KV reads"),
        ("density", f"{density}  compute over memory"
         if times.density is not None else density),
        ("ideal optimum", f"{format_seconds(times.ideal_s)}  perfect overlap"),
        ("practical optimum", f"{format_seconds(times.practical_s)}  as this hardware overlaps"),
        ("predicted", f"{format_seconds(times.predicted_s)}  with the sharing kept"),
    ]  # fmt: skip
    title = (
        f"{plan.model.name} on {plan.hardware}, policy {plan.policy}, "
        f"tp {plan.tp}, dp {plan.dp} ({plan.hardware_reason})"
    )
    out.print(title, markup=False)
    out.print(figures(rows))
    for warning in plan.warnings:
        out.print(f"note: {warning}", markup=False)
    out.print(f"plan: {path}", markup=False)
