"""`blendrun status`."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli.output import stdout_may_close
from blendrun.cli.plan_table import console, figures
from blendrun.report.status import RunStatus, read_status
from blendrun.units import count_of, format_bytes, format_seconds


def status(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """How far a run is, while it runs or after. Reads the run folder only, and keeps nobody out."""
    found = read_status(run)
    with stdout_may_close():
        if as_json:
            typer.echo(json.dumps({"run": str(run), **asdict(found)}, allow_nan=False))
            return
        out = console()
        by = f" (process {found.process})" if found.process else ""
        out.print(f"{run}: {found.state}{by}", markup=False)
        out.print(figures(list(_lines(found))))


def _lines(status: RunStatus) -> Iterator[tuple[str, str]]:
    of = "" if status.rows is None else f"of {status.rows:,}, "
    left = "" if status.rows_left is None else f", {status.rows_left:,} left"
    errors = count_of(status.error_rows, "error row")
    yield "rows answered", f"{status.answered_rows:,}  {of}{errors}{left}"
    if status.attempt_s is not None:
        yield f"attempt {status.attempts}", f"{format_seconds(status.attempt_s)}  with loading"
    if status.rows_per_s is not None and status.output_tokens_per_s is not None:
        yield "rows/s", f"{status.rows_per_s:,.2f}  in this attempt"
        yield "output tokens/s", f"{status.output_tokens_per_s:,.0f}  in this attempt"
    if status.peak_memory_bytes is not None:
        yield "peak memory", format_bytes(status.peak_memory_bytes)
    if status.time_left_s is not None:
        yield "time left", f"{format_seconds(status.time_left_s)}  at this speed"
