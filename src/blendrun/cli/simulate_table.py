"""What `blendrun simulate` prints: a table for people, then one line of JSON."""

import json
from pathlib import Path

import typer
from rich.table import Table

from blendrun.cli.plan_table import console
from blendrun.report.simulate import PolicyOutcome
from blendrun.report.what_if import Point
from blendrun.units import count_of, format_seconds


def print_outcomes(outcomes: list[PolicyOutcome], num_guessed: int) -> None:
    out = console()
    first = outcomes[0].outcome
    best, cost = first.optimum, first.cost
    ranks = first.num_ranks
    engine = "overlapped" if first.overlaps else "sequential"
    reads_once = cost.hardware.shared_reads
    out.print(
        f"simulated: {cost.shape.name} on {cost.hardware.name}, tp {cost.tp}, dp {ranks}, "
        f"{engine} engine, lengths {first.options.lengths}, cost model {cost.flavour}",
        markup=False,
    )
    out.print(
        f"ideal optimum {format_seconds(best.ideal_s / ranks)}, practical optimum "
        f"{format_seconds(best.practical_s / ranks)}"
    )
    out.print(
        f"with shared prefixes read once a step {format_seconds(best.once_practical_s / ranks)}"
        + ("" if reads_once else ", which this engine does not do")
    )
    has_price = any(made.price is not None for made in outcomes)
    table = Table(box=None, pad_edge=False, header_style="")
    names = ["policy", "budget", "time", "tokens/s", "of practical", "of ideal", "sharing kept",
             "requests", "KV pages", "preempted"]  # fmt: skip
    for name in [*names, *(["price"] if has_price else [])]:
        table.add_column(name, justify="left" if name in ("policy", "budget") else "right")
    for made in outcomes:
        row = _figures(made)
        cells = [
            str(row["policy"]),
            str(row["budget"]),
            format_seconds(made.outcome.seconds),
            f"{row['total_tokens_per_s']:,.0f}",
            f"{row['once_practical_frac' if reads_once else 'practical_frac']:.1%}",
            f"{row['ideal_frac']:.1%}",
            f"{row['sharing_kept_frac']:.1%}",
            f"{row['mean_running']:,.0f}",
            f"{row['mean_page_use_frac']:.0%}",
            f"{row['preemptions']:,}",
        ]
        table.add_row(*cells, *([f"{made.price:,.2f}"] if made.price is not None else []))
    out.print(table)
    _note_guesses(num_guessed)
    if cost.hardware.overlaps and not first.overlaps:
        out.print("note: the optima are those of an engine that overlaps")
    for made in outcomes:
        out.print(f"blendrun report {made.run_dir}", markup=False)
    about = {
        "model": cost.shape.name,
        "hardware": cost.hardware.name,
        "tp": cost.tp,
        "dp": ranks,
        "overlaps": first.overlaps,
        "shared_reads": reads_once,
        "lengths": first.options.lengths,
        "ideal_s": best.ideal_s / ranks,
        "practical_s": best.practical_s / ranks,
        "once_practical_s": best.once_practical_s / ranks,
    }
    typer.echo(json.dumps(about | {"policies": [_figures(made) for made in outcomes]}))


def print_points(made: tuple[list[Point], str, Path], num_guessed: int) -> None:
    points, unit, picture = made
    out = console()
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("hardware", "tp", "dp", "time", unit.removesuffix(" of the whole job"), ""):
        table.add_column(name, justify="left" if name in ("hardware", "") else "right")
    for point in points:
        if point.seconds is None or point.price is None:
            table.add_row(point.hardware, str(point.tp), str(point.dp), "-", "-", point.reason)
            continue
        table.add_row(
            point.hardware,
            str(point.tp),
            str(point.dp),
            format_seconds(point.seconds),
            f"{point.price:,.2f}",
            "nothing is faster and cheaper" if point.is_best else "",
        )
    out.print(table)
    best = sum(point.is_best for point in points)
    out.print(f"{count_of(best, 'machine')} of {len(points)} on the front of time against price")
    _note_guesses(num_guessed)
    out.print(f"picture: {picture}", markup=False)
    rows = [
        {
            "hardware": p.hardware,
            "tp": p.tp,
            "dp": p.dp,
            "seconds": p.seconds,
            "price": p.price,
            "practical_frac": p.practical_frac,
            "is_best": p.is_best,
            "reason": p.reason,
        }
        for p in points
    ]
    typer.echo(json.dumps({"price_unit": unit, "points": rows}))


def _note_guesses(num_guessed: int) -> None:
    if num_guessed:
        console().print(
            f"note: the input does not say how long {count_of(num_guessed, 'output')} will be; "
            "the plan's guess stands for the truth (plan --output-len-column tells)"
        )


def _figures(made: PolicyOutcome) -> dict[str, str | float | int | None]:
    outcome = made.outcome
    return {
        "policy": outcome.options.policy,
        "budget": outcome.budget,
        "seconds": outcome.seconds,
        "total_tokens_per_s": outcome.tokens_per_s,
        "practical_frac": outcome.practical_frac,
        "once_practical_frac": outcome.once_practical_frac,
        "ideal_frac": outcome.ideal_frac,
        "sharing_kept_frac": outcome.sharing_kept,
        "mean_running": outcome.mean_running,
        "mean_page_use_frac": outcome.mean_page_use_frac,
        "preemptions": outcome.preemptions,
        "recomputed_tokens": outcome.recomputed_tokens,
        "price": made.price,
        "run_dir": str(made.run_dir),
    }
