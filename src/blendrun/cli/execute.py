"""`blendrun execute`."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendrun.cli import flags
from blendrun.cli.output import stdout_may_close
from blendrun.cli.progress import RunProgress
from blendrun.cli.ranks import RankFlags
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError
from blendrun.schedule.plan_file import read_header
from blendrun.units import count_of

if TYPE_CHECKING:
    from blendrun.engine.attempt import RunEvents

FINISHED_WITH_ERROR_ROWS = 3
INTERRUPTED = 130


def execute(
    plan: Annotated[Path, typer.Argument(help="A plan made by blendrun plan.")],
    run_dir: flags.RunDir = None,
    engine: flags.RunEngine = None,
    policy: flags.RunPolicy = None,
    model: flags.ModelPath = None,
    tp: flags.RunTp = None,
    dp: flags.RunDp = None,
    launcher: flags.LauncherFlag = None,
    ray_address: flags.RayAddress = None,
    dtype: flags.Dtype = None,
    kv_dtype: flags.KvDtype = None,
    load_format: flags.LoadFormat = None,
    device: flags.Device = None,
    attention: flags.Attention = None,
    pod: flags.Pod = None,
    overlap: flags.OverlapFlag = None,
    graphs: flags.GraphsFlag = None,
    schedule: flags.ScheduleFlag = None,
    kv_memory: flags.KvMemory = None,
    page_size: flags.PageSize = None,
    chunk_size: flags.ChunkSize = None,
    max_seqs: flags.MaxSeqs = None,
    prefix_cache: flags.PrefixCache = None,
    shared_prefix_attention: flags.SharedPrefixAttention = None,
    ignore_eos: flags.IgnoreEos = None,
    deterministic: flags.Deterministic = None,
    output_format: flags.OutputFormatFlag = None,
    output_part_size: flags.OutputPartSize = None,
    time_limit: flags.TimeLimit = None,
    hang_limit: flags.HangLimit = None,
    retry_errors: flags.RetryErrors = None,
) -> None:
    """Run a plan; started again, it continues. Writes RUN_DIR/outputs.parquet."""
    given, begin_s = dict(locals()), time.monotonic()
    ranks = RankFlags.of(given.pop("dp"), given.pop("launcher"), given.pop("ray_address"))
    settings = {k: v for k, v in given.items() if k not in ("plan", "run_dir")}
    run_plan(plan, run_dir or default_run_dir(plan), settings, begin_s, ranks)


def default_run_dir(plan: Path) -> Path:
    return plan.with_name(f"{plan.name.removesuffix('.json')}.run")


def run_plan(
    plan: Path, run_dir: Path, given: dict[str, Any], begin_s: float, ranks: RankFlags
) -> None:
    """Execute, say where the outputs are, and exit with 3 if there are error rows.

    `begin_s`: when the command began, on the monotonic clock.
    """
    settings = flags.execute_settings(given)
    if given.get("engine") is None:
        settings = replace(settings, engine=read_header(plan)[0].engine)
    num_ranks = ranks.number(plan)
    with (
        engine_run(run_dir, settings) as events,
        ranks.group(num_ranks, settings, events) as group,
    ):
        from blendrun.engine.execute import execute_plan
        from blendrun.launch.tensor_group import load_model

        result = execute_plan(plan, run_dir, settings, events, begin_s, load_model, group)
    with stdout_may_close():
        if result.was_complete:
            typer.echo("the run was complete already: nothing to do")
        typer.echo(f"outputs: {result.outputs} ({count_of(result.num_rows, 'row')})")
    if result.num_errors:
        errors = count_of(result.num_errors, "error row")
        typer.echo(f"{errors}: the column error says why", err=True)
        raise typer.Exit(FINISHED_WITH_ERROR_ROWS)


def load_engine() -> None:
    """Import what computes. Raises InputError where torch is not installed."""
    # Threads that spin for long while they wait (the default) make a machine with other work on it
    # many times slower; this is about 0.2 ms, which spans the time from one operator to the next.
    # OpenMP reads it when torch loads.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        import_module("blendrun.engine.execute")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(
            "executing needs torch, which is not installed", "pip install 'blendrun[cpu]'"
        ) from error


@contextmanager
def engine_run(run_dir: Path, settings: ExecuteSettings) -> Iterator["RunEvents"]:
    """Progress of a run, and a clean end of an interrupted one. torch is loaded inside.

    Raises:
        InputError: torch is not installed.
    """
    load_engine()
    logging.captureWarnings(True)
    # a batch system's SIGTERM ends a run as Ctrl-C does: with what is finished saved
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with RunProgress(run_dir, settings.log_interval_s) as progress:
            yield progress.events()
    except KeyboardInterrupt as interrupt:
        typer.echo("interrupted: what is finished is saved; the same command continues", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
    finally:
        signal.signal(signal.SIGTERM, before)
