"""The screen that `blendrun plan` prints."""

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from blendrun.schedule.plan_record import Plan
from blendrun.units import count_of, format_count, format_seconds


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
    out = console()
    title = (
        f"{plan.model.name} on {plan.hardware}, policy {plan.policy}, "
        f"tp {plan.tp}, dp {plan.dp} ({plan.hardware_reason})"
    )
    out.print(title, markup=False)
    out.print(figures([*_job(plan), *_time(plan), *_gap(plan)]))
    for warning in plan.warnings:
        out.print(f"note: {warning}", markup=False)
    out.print(f"plan: {path}", markup=False)


def _job(plan: Plan) -> Iterator[tuple[str, str]]:
    """What will run."""
    counts = plan.counts
    windows = f", in {count_of(len(plan.windows), 'window')}" if plan.windows else ""
    lengths = ", ".join(f"{n:,} from {origin}" for origin, n in counts.lengths_from.items())
    yield "requests", f"{counts.requests:,}  of {counts.rows:,} rows{windows}"
    if counts.rejected:
        codes = ", ".join(f"{n:,} {code}" for code, n in counts.rejected_by_code.items())
        yield "rows set aside", f"{counts.rejected:,}  {codes}"
    if counts.repeated_prompts:
        yield "repeated prompts", f"{counts.repeated_prompts:,}  requests with a prompt seen before"
    yield "prompt tokens", format_count(counts.prompt_tokens)
    yield "unique prompt tokens", format_count(counts.unique_prompt_tokens)
    yield "expected output tokens", f"{format_count(counts.expected_output_tokens)}  {lengths}"
    yield "sharing possible", f"{counts.sharing_possible:.1%}  of the prompt tokens"
    yield "sharing kept", f"{counts.sharing_kept:.1%}  in the planned order"


def _time(plan: Plan) -> Iterator[tuple[str, str]]:
    """How long it will take, and where the time goes."""
    times = plan.times
    ends = f"{format_seconds(times.predicted_low_s)} and {format_seconds(times.predicted_high_s)}"
    yield "predicted", f"{format_seconds(times.predicted_s)}  between {ends}"
    if plan.ranks_reason:
        yield "tp and dp", f"{plan.tp} and {plan.dp}  {plan.ranks_reason}"
    if plan.ranks:
        ends_s = [rank.predicted_s for rank in plan.ranks]
        spread = f"{format_seconds(min(ends_s))} to {format_seconds(max(ends_s))} of work"
        yield "ranks", f"{len(plan.ranks)}  {spread}, the same mix in each"
    prefill_s = times.shared_compute_s - times.decode_compute_s
    # each a share of what would run one after the other
    work_s = (times.shared_compute_s + times.memory_s) or 1.0
    parts = {"prefill": prefill_s, "decode": times.decode_compute_s, "KV reads": times.memory_s}
    for name, seconds in parts.items():
        yield f"  {name}", f"{format_seconds(seconds)}  {seconds / work_s:.0%} of the work"


def _gap(plan: Plan) -> Iterator[tuple[str, str]]:
    """How far that is from the optimum."""
    times = plan.times
    saved_s = times.compute_s - times.shared_compute_s
    yield "T_comp", f"{format_seconds(times.compute_s)}  nothing shared"
    yield (
        "T_comp, shared",
        (f"{format_seconds(times.shared_compute_s)}  sharing spares {format_seconds(saved_s)}"),
    )
    yield "T_mem", f"{format_seconds(times.memory_s)}  KV reads"
    once_s = format_seconds(times.once_memory_s)
    yield "  prefixes once a step", f"{once_s}  at least, if a step reads a shared prefix for all"
    if times.density is None:
        yield "density", "none  no KV is read"
    else:
        yield "density", f"{times.density:.2f}  compute over memory"
    yield "ideal optimum", f"{format_seconds(times.ideal_s)}  perfect overlap"
    overlaps = "as this hardware overlaps"
    yield "practical optimum", f"{format_seconds(times.practical_s)}  {overlaps}"
    once_s = format_seconds(times.once_practical_s)
    yield "  prefixes once a step", f"{once_s}  likewise"
    if times.predicted_s > 0:
        best_s = times.once_practical_s if plan.shared_reads else times.practical_s
        share = best_s / times.predicted_s
        again = plan.counts.sharing_kept < plan.counts.sharing_possible - 0.001
        rest = "prefixes computed again, ramp-up and tail" if again else "ramp-up and tail"
        which = ", prefixes once a step" if plan.shared_reads else ""
        yield (
            "reached, predicted",
            f"{share:.0%}  of the practical optimum{which}; the rest: {rest}",
        )
