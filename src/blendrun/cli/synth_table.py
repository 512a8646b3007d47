"""The screen that `blendrun synth` prints: tables for people, then one line of JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table

from blendrun.cli.plan_table import console, figures
from blendrun.cost.cost_model import CostModel
from blendrun.units import format_count
from blendrun.workloads.summary import Summary
from blendrun.workloads.targets import Targets


def print_workload(
    whole: Summary,
    by_set: Sequence[Summary],
    targets: Targets,
    cost: CostModel,
    seed: int,
    path: Path,
) -> None:
    out = console()
    about = f"{cost.shape.name} on {cost.hardware.name}, cost {cost.flavour}, tp {cost.tp}"
    out.print(f"{about}, seed {seed}", markup=False)
    out.print(_sets(by_set))
    out.print()
    out.print(figures(_totals(whole, targets)))
    out.print(f"prompts: {path}", markup=False)
    record = {
        "path": str(path),
        "seed": seed,
        "target_density": targets.density,
        "target_sharing": targets.sharing,
        **asdict(whole),
        "sets": [asdict(each) for each in by_set],
    }
    del record["name"]
    typer.echo(json.dumps(record))


def _sets(by_set: Sequence[Summary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("set")
    for name in ("requests", "mean prompt", "mean output", "max_tokens", "density", "sharing"):
        table.add_column(name, justify="right")
    for each in by_set:
        table.add_row(
            each.name,
            f"{each.requests:,}",
            f"{each.mean_prompt_len:,.0f}",
            f"{each.mean_output_len:,.0f}",
            f"{each.max_tokens:,}",
            _density(each),
            f"{each.sharing:.1%}",
        )
    return table


def _totals(whole: Summary, targets: Targets) -> list[tuple[str, str]]:
    wanted = "" if targets.density is None else f"  wanted {targets.density:g}"
    wanted_sharing = "" if targets.sharing is None else f"  wanted {targets.sharing:.1%}"
    return [
        ("requests", f"{whole.requests:,}"),
        ("density", f"{_density(whole)}{wanted}"),
        ("sharing", f"{whole.sharing:.2%}{wanted_sharing or '  of the compute'}"),
        ("prompt tokens", format_count(whole.prompt_tokens)),
        ("unique prompt tokens", format_count(whole.unique_prompt_tokens)),
        ("output tokens", format_count(whole.output_tokens)),
    ]


def _density(summary: Summary) -> str:
    return "none" if summary.density is None else f"{summary.density:.4g}"
