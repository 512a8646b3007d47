"""`blendrun`: the program, and what it says when something goes wrong."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from blendrun import __version__
from blendrun.cli.calibrate import calibrate
from blendrun.cli.execute import execute
from blendrun.cli.inspect import inspect
from blendrun.cli.plan import plan
from blendrun.cli.report import report
from blendrun.cli.run import run
from blendrun.cli.simulate import simulate
from blendrun.cli.status import status
from blendrun.cli.synth import synth
from blendrun.errors import BackendError, BlendrunError, InputError

USER_ERROR, RUN_FAILED = InputError.exit_code, BackendError.exit_code
_WRONG_PATH = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

app = typer.Typer(
    help="Run a file of prompts through a language model, in the order that is soonest done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(plan)
app.command()(inspect)
app.command()(execute)
app.command()(simulate)
app.command()(report)
app.command()(status)
app.command()(calibrate)
app.command()(run)
app.command()(synth)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"blendrun {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Flags of the program itself."""


def main() -> None:
    """Entry point; exit codes are in the README."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        app()
    except BlendrunError as error:
        errors.print(f"error: {error.message}", markup=False)
        if error.hint:
            errors.print(f"hint: {error.hint}", markup=False)
        sys.exit(error.exit_code)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        errors.print(f"error: {error.strerror or error}{where}", markup=False)
        sys.exit(USER_ERROR if isinstance(error, _WRONG_PATH) else RUN_FAILED)
