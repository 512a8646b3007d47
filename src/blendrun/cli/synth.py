"""`blendrun synth`."""

from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli import flags
from blendrun.cli.output import stdout_may_close
from blendrun.cli.synth_table import print_workload
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.data.disk import make_folder
from blendrun.schedule.plan_model import load_model
from blendrun.workloads.prompt_file import LENGTH_COLUMN, check_length_column, prompt_format
from blendrun.workloads.set_spec import default_sets, parse_sets
from blendrun.workloads.sets import SYSTEM_LEN
from blendrun.workloads.summary import summarize
from blendrun.workloads.synthesis import synthesize
from blendrun.workloads.targets import Targets


def synth(
    output: Annotated[
        Path, typer.Argument(help="Prompt file to write: .parquet, or .jsonl.", metavar="OUT")
    ],
    requests: Annotated[int, typer.Option("--requests", "-n", help="How many requests.")],
    density: Annotated[
        float | None, typer.Option(help="Compute over memory time that the job is to have.")
    ] = None,
    sharing: Annotated[
        float | None, typer.Option(help="Share of compute that shared prefixes save, such as 0.35.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=SPEC",
            help="A set: NAME=openvid, NAME=mmlu or NAME=trace:FILE*WEIGHT+FILE*WEIGHT; can be "
            "repeated (default: the three sets of the paper, burst, openvid and mmlu).",
        ),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Folder with the length traces that sets name.")
    ] = None,
    system_len: Annotated[
        int, typer.Option(help="Tokens of the system prompt of each trace set.")
    ] = SYSTEM_LEN,
    length_column: Annotated[
        str,
        typer.Option(help="Column for the true output lengths; plan reads output_len by itself."),
    ] = LENGTH_COLUMN,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    model: flags.Model = None,
    hardware: flags.Hardware = None,
    cost: flags.Cost = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks (default: 1).")] = None,
) -> None:
    """Make up a job with a given density and prefix sharing, as a prompt file of token ids."""
    named = {"model": model, "hardware": hardware, "cost": cost}
    settings = flags.plan_settings(None, named).value
    prompt_format(output)
    check_length_column(length_column)
    targets = Targets(density, sharing)
    chosen = parse_sets(sets, traces, system_len) if sets else default_sets(traces, system_len)
    prices = CostModel(
        load_model(settings).shape,
        HardwareProfile.load(settings.hardware),
        tp or 1,
        settings.cost,
    )
    workload = synthesize(chosen, requests, targets, prices, seed)
    make_folder(output.absolute().parent)
    workload.write(output, length_column)
    with stdout_may_close():
        print_workload(*summarize(workload, prices), targets, prices, seed, output)
