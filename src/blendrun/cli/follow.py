"""A report that is made again and again while a run goes on."""

import time
from pathlib import Path

from rich.live import Live
from rich.text import Text

from blendrun.cli.plan_table import console
from blendrun.report.report import make_report
from blendrun.report.status import read_status
from blendrun.units import format_seconds

_INTERVAL_S = 5.0


def follow(run: Path) -> None:
    """Show how it goes until no process works on the run any more.

    On a terminal in place, otherwise a line for every look.
    """
    out = console()
    with Live(console=out, auto_refresh=False) as live:
        while True:
            status = read_status(run)
            text = _look(run)
            if out.is_terminal:
                live.update(Text(text), refresh=True)
            else:
                out.print(text.replace("\n", "; "), markup=False, soft_wrap=True)
            if status.state != "running":
                return
            time.sleep(_INTERVAL_S)


def _look(run: Path) -> str:
    status = read_status(run)
    rows = "" if status.rows is None else f" of {status.rows:,}"
    lines = [f"{run}: {status.state}, {status.answered_rows:,}{rows} rows answered"]
    if status.time_left_s is not None:
        lines[0] += f", {format_seconds(status.time_left_s)} left"
    if status.attempts:
        report = make_report(run)
        lines += filter(None, (report.finding, report.advice))
    return "\n".join(lines)
