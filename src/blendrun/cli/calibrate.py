"""`blendrun calibrate`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blendrun.cli import flags
from blendrun.cli.calibrate_table import print_calibration
from blendrun.cli.execute import load_engine
from blendrun.cli.output import stdout_may_close
from blendrun.cost.hardware import measured_gpu_path, measured_profile_path
from blendrun.cost.profile_file import write_profile


def calibrate(
    model: Annotated[str, typer.Option(help="The model to measure with, as for plan.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Profile to write (default: where `auto` finds it)."),
    ] = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    load_format: flags.LoadFormat = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture to write, .svg or .png (default: beside it).")
    ] = None,
) -> None:
    """Measure this machine's GPU, or its CPU, so that plans and simulations tell its own times."""
    begin = time.monotonic()
    settings = flags.execute_settings(
        {"dtype": dtype, "device": device, "load_format": load_format}
    )
    news = Console(stderr=True, highlight=False)
    load_engine()
    from blendrun.engine.calibration import measured_profile
    from blendrun.report.roofline import plot_roofline  # loads a plotting library

    profile = measured_profile(model, settings, lambda what: news.print(what, markup=False))
    path = output
    if path is None:
        is_gpu = profile.kind == "cuda"
        path = measured_gpu_path(profile.device_names[0]) if is_gpu else measured_profile_path()
    write_profile(profile, path, f"Measured by blendrun calibrate with {profile.model}.")
    picture = plot or path.with_suffix(".svg")
    plot_roofline(profile, picture)
    with stdout_may_close():
        print_calibration(profile)
        typer.echo(f"profile: {path}")
        typer.echo(f"picture: {picture}")
        seconds = time.monotonic() - begin
        made = {"profile": str(path), "picture": str(picture), "seconds": round(seconds, 1)}
        typer.echo(json.dumps(made))
