"""The screen that `blendrun report` prints: tables for people, then one line of JSON."""

from pathlib import Path

import typer
from rich.table import Table

from blendrun.cli.gap_table import print_gap
from blendrun.cli.plan_table import console, figures
from blendrun.report.report import Report, report_json
from blendrun.units import count_of, format_bytes, format_count, format_seconds, format_share


def print_report(report: Report, folder: Path) -> None:
    out = console()
    state = "complete" if report.manifest.is_complete else "NOT COMPLETE: figures so far"
    environment = report.manifest.environment
    policy = environment.get("policy", report.plan.policy)
    if environment.get("simulated"):
        state = f"simulated on {environment['hardware']['name']}, {state}"
    about = f"{report.plan.model.name}, policy {policy}, {state}"
    out.print(f"{report.run_dir}: {about}", markup=False)
    out.print(report.finding, markup=False)
    if report.advice:
        out.print(report.advice, markup=False)
    if report.explained:
        print_gap(out, report.explained.facts)
    out.print(figures([*_speed(report), *_sharing(report), *_optimum(report)]))
    if report.unknown:
        out.print(f"{environment['attention']} does not tell: {', '.join(report.unknown)}")
    if report.timeline.num_rows:
        out.print()
        out.print("over time")
        out.print(_over_time(report))
    out.print(f"saved: {folder}", markup=False)
    typer.echo(report_json(report))


def _speed(report: Report) -> list[tuple[str, str]]:
    m, counts = report.metrics, report.plan.counts
    parts = {
        "model": m.model_s,
        "attention": m.attention_s,
        "sampling": m.sample_s,
        "scheduling": m.schedule_s,
        "other": m.other_s,
    }
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items())
    generation = [
        ("generation", f"{format_seconds(m.generate_s)}  {split}"),
        (
            "  outside kernels",
            f"{m.outside_frac:.1%}  scheduling {format_seconds(m.schedule_s)}, sampling "
            f"{format_seconds(m.sample_s)}, writing and other {format_seconds(m.other_s)}",
        ),
    ]
    if report.manifest.environment.get("simulated") or not m.steps:
        generation = []  # virtual time is that of the model, and all of the wall time
    errors = m.error_rows + counts.rejected
    return [
        (
            "rows answered",
            f"{m.answered_rows:,}  of {counts.rows:,}, {count_of(errors, 'error row')}",
        ),
        (
            "wall time",
            f"{format_seconds(m.wall_s)}  {count_of(m.attempts, 'attempt')}, "
            f"loading {format_seconds(m.load_s)}",
        ),
        *generation,
        *_memory(report),
        ("input tokens/s", f"{m.input_tokens_per_s:,.0f}  {format_count(m.prompt_tokens)} in all"),
        (
            "output tokens/s",
            f"{m.output_tokens_per_s:,.0f}  {format_count(m.output_tokens)} in all",
        ),
        ("total tokens/s", f"{m.total_tokens_per_s:,.0f}"),
    ]


def _memory(report: Report) -> list[tuple[str, str]]:
    memory = report.peak_memory
    if memory is None:
        return []
    parts = f"weights {format_bytes(memory.weights)}, KV pages {format_bytes(memory.kv_pages)}"
    rest = f", {format_bytes(memory.above)} above" if memory.above > 0 else ", not all of them used"
    return [("peak memory", f"{format_bytes(memory.peak)}  {parts}{rest}")]


def _sharing(report: Report) -> list[tuple[str, str]]:
    m, counts = report.metrics, report.plan.counts
    deterministic = []
    if report.manifest.environment.get("deterministic"):
        padding = f"on  {m.padding_frac:.1%} of the rows computed are padding"
        deterministic = [("deterministic", padding)]
    computed, unique = m.computed_prompt_tokens, counts.unique_prompt_tokens
    return [
        ("sharing achieved", f"{m.sharing_frac:.1%}  possible {counts.sharing_possible:.1%}"),
        ("prompt tokens computed", f"{format_count(computed)}  at least {format_count(unique)}"),
        ("preemptions", f"{m.preemptions:,}"),
        ("recomputed tokens", f"{m.recomputed_tokens:,}  after preemption"),
        ("requests at once", f"{m.mean_running:,.0f}  on average"),
        ("KV pages in use", f"{m.mean_page_use_frac:.0%}  on average"),
        *deterministic,
    ]


def _optimum(report: Report) -> list[tuple[str, str]]:
    best = report.optimum
    predicted = ("predicted", f"{format_seconds(report.plan.times.predicted_s)}  by the plan")
    fracs = (report.ideal_frac, report.practical_frac, report.once_practical_frac)
    if best is None or None in fracs:
        return [predicted]
    ideal, practical, once = (format_share(frac or 0.0) for frac in fracs)
    shared_s, memory_s = format_seconds(best.shared_compute_s), format_seconds(best.memory_s)
    once_s, once_practical_s = map(format_seconds, (best.once_memory_s, best.once_practical_s))
    ideal_s, practical_s = format_seconds(best.ideal_s), format_seconds(best.practical_s)
    return [
        ("compute", f"{shared_s}  by the cost model, prefixes once"),
        ("memory", f"{memory_s}  KV reads; shared prefixes once a step: at least {once_s}"),
        ("of ideal optimum", f"{ideal}  {ideal_s}; here of generation, not of the wall time"),
        ("of practical optimum", f"{practical}  {practical_s}"),
        ("  prefixes read once a step", f"{once}  {once_practical_s}"),
        predicted,
    ]


def _over_time(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("until", "running", "waiting", "KV pages", "prefill tok/s", "decode tok/s"):
        table.add_column(name, justify="right")
    for span in report.timeline.to_pylist():
        table.add_row(
            format_seconds(span["end_s"]),
            f"{span['running']:,.0f}",
            f"{span['waiting']:,.0f}",
            f"{span['page_use_frac']:.0%}",
            f"{span['prefill_tokens_per_s']:,.0f}",
            f"{span['decode_tokens_per_s']:,.0f}",
        )
    return table
