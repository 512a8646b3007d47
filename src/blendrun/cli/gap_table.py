"""The part of the report's screen that says where the wall time went, and what to change."""

from rich.console import Console
from rich.table import Table

from blendrun.report.gap import BOUND, PARTS, UNEXPLAINED, Gap
from blendrun.report.remedies import OPTIMUM, SMALL_FRAC, TITLES, Facts, sentence
from blendrun.units import count_of, format_seconds


def print_gap(out: Console, facts: Facts) -> None:
    out.print()
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("where the time went", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("why, and what to change")
    gap = facts.gap
    small = [part for part in PARTS if abs(gap.part_of_wall(part)) < SMALL_FRAC]
    small = [part for part in small if part not in (*BOUND, UNEXPLAINED)]
    for part in PARTS:
        if part == UNEXPLAINED and small:
            rest_s = sum(gap.seconds[part] for part in small)
            name = count_of(len(small), "other part")
            note = f"each under {SMALL_FRAC:.2%} of the wall time"
            table.add_row(*_cells(name, rest_s, gap), note)
        if part not in small:
            table.add_row(*_cells(TITLES[part], gap.seconds[part], gap), sentence(part, facts))
        if part == BOUND[-1]:
            table.add_row(*_cells("= practical optimum", gap.practical_s, gap), OPTIMUM)
    table.add_row(*_cells("= wall time", gap.wall_s, gap), "")
    out.print(table)
    out.print()


def _cells(title: str, seconds: float, gap: Gap) -> tuple[str, str, str]:
    frac = seconds / gap.wall_s if gap.wall_s else 0.0
    return title, format_seconds(seconds), f"{frac:z.1%}"
