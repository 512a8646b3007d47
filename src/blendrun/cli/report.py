"""`blendrun report`."""

from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli.compare_table import print_against, print_comparison
from blendrun.cli.follow import follow as follow_run
from blendrun.cli.output import stdout_may_close
from blendrun.cli.report_table import print_report
from blendrun.errors import InputError
from blendrun.report.compare import against_plan, differences, predicted_well
from blendrun.report.page import save_page
from blendrun.report.report import make_report, save_report
from blendrun.schedule.plan_file import read_header


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several: compare them.")
    ],
    against: Annotated[
        Path | None, typer.Option(help="A plan: compare what it predicted with what happened.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="While the run goes on, show how it goes.")
    ] = False,
) -> None:
    """How fast a run was, how far from the optimum, and why. Saved in RUN/report, with a page.

    The last line is JSON.
    """
    if len(runs) > 1 and (against is not None or follow):
        raise InputError("--against and --follow take one run")
    with stdout_may_close():
        if len(runs) > 1:
            reports = [make_report(run) for run in runs]
            print_comparison(reports, differences(reports))
            return
        if follow:
            follow_run(runs[0])
        made = make_report(runs[0])
        if against is not None:
            plan, _ = read_header(against)
            outcomes = against_plan(made, plan)
            print_against(made, plan, str(against), outcomes, predicted_well(made, plan))
            return
        folder = save_report(made)
        save_page(made, folder)
        print_report(made, folder)
