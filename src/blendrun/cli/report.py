"""`blendrun report`."""

from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli.output import stdout_may_close
from blendrun.cli.report_table import print_report
from blendrun.report.page import save_page
from blendrun.report.report import make_report, save_report


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
) -> None:
    """How fast a run was, and how far from the optimum. Saved in RUN/report; last line is JSON."""
    made = make_report(run)
    folder = save_report(made)
    save_page(made, folder)
    with stdout_may_close():
        print_report(made, folder)
