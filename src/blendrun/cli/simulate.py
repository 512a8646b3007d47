"""`blendrun simulate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from blendrun.cli import flags
from blendrun.cli.output import stdout_may_close
from blendrun.cli.progress import StageProgress
from blendrun.cli.simulate_table import print_outcomes, print_points
from blendrun.compiled import is_first_use
from blendrun.config import resolve
from blendrun.engine.simulated_job import SimulateOptions
from blendrun.report.simulate import (
    Simulation,
    rank_speeds,
    simulate_policies,
    simulate_what_if,
)
from blendrun.units import parse_bytes


def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan.")],
    hardware: Annotated[
        str | None,
        typer.Option(help="Hardware profile: name or TOML file (default: the plan's)."),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(help="Tensor-parallel ranks (default: the plan's).")
    ] = None,
    dp: Annotated[
        int | None, typer.Option(help="Data-parallel ranks (default: the plan's).")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="A policy, several with commas, or all (default: the plan's)."),
    ] = None,
    budget: flags.Budget = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="What the batcher knows of output lengths: exact, static (means of a sample), "
            "survival (learned during the run) or auto (stated ones are known, others learned)."
        ),
    ] = None,
    overlap: Annotated[
        bool | None,
        typer.Option(
            "--overlap/--no-overlap",
            help="Engine that overlaps compute and memory inside a step (default: yes).",
        ),
    ] = None,
    price_per_gpu_hour: Annotated[
        list[str] | None,
        typer.Option(help="Price of a device hour: 2.50, or h200=3.80; can be repeated."),
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(help="Grid of machines: 'hardware=a100-80gb-sxm,h200 tp=1,2,4 dp=1..8'."),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the simulated runs (default: NAME.sim).")
    ] = None,
    chunk_log: Annotated[
        Path | None, typer.Option(help="Folder for what happened, chunk by chunk.")
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(help="Prefill tokens of a step at most (default: the hardware profile's)."),
    ] = None,
    max_seqs: Annotated[
        int | None,
        typer.Option(help="Requests running at once at most (default: 4096, CPU: 512)."),
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(help="KV memory of a rank, such as 4GiB (default: the profile's).")
    ] = None,
    page_size: Annotated[
        int | None,
        typer.Option(help="Tokens of a KV page (default: 16; 1 with the paper's cost model)."),
    ] = None,
    rank_speed: Annotated[
        list[str] | None,
        typer.Option(help="A rank slower than the others, such as 0=0.5; can be repeated."),
    ] = None,
    seed: flags.Seed = None,
) -> None:
    """What would this job take, on this machine or another, in which order, at what price?"""
    given: dict[str, Any] = {
        "budget": budget,
        "lengths": lengths,
        "overlaps": overlap,
        "dp": dp,
        "seed": seed,
        "page_size": page_size,
        "chunk_size": chunk_size,
        "max_seqs": max_seqs,
        "kv_memory": parse_bytes(kv_memory) if kv_memory else None,
    }
    options = resolve(SimulateOptions, given, {}, "flags").value
    speeds = rank_speeds(rank_speed or [])
    wanted = Simulation.open(plan, options, hardware, tp, dp, price_per_gpu_hour or [], speeds)
    if is_first_use():
        typer.echo("compiling the batcher: half a minute, once", err=True)
    with StageProgress() as progress:
        if what_if is not None:
            points = simulate_what_if(wanted, what_if, policy, run_dir, progress)
        else:
            outcomes = simulate_policies(wanted, policy, run_dir, chunk_log, progress)
    with stdout_may_close():
        if what_if is not None:
            print_points(points, wanted.num_guessed)
        else:
            print_outcomes(outcomes, wanted.num_guessed)
