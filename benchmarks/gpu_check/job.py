"""The job under each policy, steps whole, overlapped, in turn: speed, optimum, and prediction."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from blendrun.config import resolve
from blendrun.data.manifest import read_manifest
from blendrun.engine.execute import execute_plan
from blendrun.engine.simulated_job import SimulateOptions
from blendrun.report.report import make_report
from blendrun.report.simulate import Simulation, simulate_policies
from blendrun.schedule.planner import make_plan
from blendrun.schedule.settings import PlanSettings
from gpu_check.model import make_model, model_loader, settings_of
from gpu_check.options import CheckOptions
from gpu_check.profile import FILE
from gpu_check.results import Findings
from gpu_check.workload import write_job

_WARM_UP = 64  # requests
_SILENT: Any = SimpleNamespace(
    begin=lambda _done, _total: None, note=lambda _text: None, step=lambda _advance: None
)


def check(options: CheckOptions, findings: Findings) -> None:
    folder, prompts = make_model(options), options.work / "prompts.parquet"
    write_job(prompts, options.requests, options.length_frac, options.model_config["vocab_size"])
    measured = options.work / FILE
    hardware = str(measured) if measured.is_file() else "auto"
    load, settings = model_loader(options), settings_of(options, folder)
    findings.note(hardware=hardware, runs=[])
    runs: list[dict[str, Any]] = []
    plans = {policy: _plan(options, folder, policy, hardware) for policy in options.policies}
    for overlap in ("off", "on"):  # compiles kernels, and is not counted
        short = _plan(options, folder, "blend", hardware, limit=_WARM_UP)
        warm = replace(settings, overlap=overlap)
        _run(options, short, f"warm-up-{overlap}", load, warm, hardware)
    for policy, plan in plans.items():
        # auto divides steps where the profile says that it gains; on, wherever one can be
        how = [("off", "async"), ("auto", "async")]
        if policy == "blend":
            how = [("off", "sequential"), *how, ("on", "async")]
        for overlap, schedule in how:
            begin = time.monotonic()
            name = f"{policy}-{overlap}-{schedule}"
            chosen = replace(settings, overlap=overlap, schedule=schedule)
            found = _run(options, plan, name, load, chosen, hardware)
            wall_s = round(time.monotonic() - begin, 2)
            described = {"policy": policy, "overlap": overlap, "schedule": schedule}
            runs.append({**described, "wall_s": wall_s, **found})
            findings.note(runs=runs)
    if "blend" in plans:
        findings.note(same_when_ahead_frac=_same_answers_frac(options))


def _plan(
    options: CheckOptions, folder: Path, policy: str, hardware: str, limit: int | None = None
) -> Path:
    """`limit`: only the first requests."""
    path = options.work / "plans" / f"{policy}{'' if limit is None else '-short'}.json"
    path.parent.mkdir(exist_ok=True)
    flags = {
        "model": str(folder),
        "policy": policy,
        "hardware": hardware,
        "ignore_eos": True,
        "limit": limit,
        "output_len_column": "max_tokens",  # lengths are known
    }
    settings = resolve(PlanSettings, flags, {}, "gpu-check")
    make_plan([str(options.work / "prompts.parquet")], settings, path, lambda *_: None)
    return path


def _run(
    options: CheckOptions, plan: Path, name: str, load: Any, settings: Any, hardware: str
) -> dict[str, Any]:
    run_dir = options.work / "runs" / name
    execute_plan(plan, run_dir, settings, _SILENT, load=load)
    figures = make_report(run_dir).values()
    manifest = read_manifest(run_dir)
    environment = manifest.environment if manifest else {}
    measured_s = figures["generate_s"]
    predicted_s = _predicted_s(options, plan, name, settings, environment, hardware)
    return {
        "generate_s": measured_s,
        "tokens_per_s": figures["total_tokens_per_s"],
        "output_tokens_per_s": figures["output_tokens_per_s"],
        "steps": figures["steps"],
        "outside_frac": figures["outside_frac"],
        "practical_frac": figures["practical_frac"],
        "once_practical_frac": figures["once_practical_frac"],
        "predicted_s": predicted_s,
        "prediction_error": predicted_s / measured_s - 1 if measured_s else None,
        "overlap_reason": environment.get("overlap_reason"),
        "attention": environment.get("attention_reason"),
    }


def _same_answers_frac(options: CheckOptions) -> float:
    """Answers of steps that were launched ahead that are those of steps in turn."""
    names = (f"blend-off-{schedule}" for schedule in ("sequential", "async"))
    paths = (options.work / "runs" / name / "outputs.parquet" for name in names)
    pairs = zip(*(pq.read_table(p)["output_token_ids"].to_pylist() for p in paths), strict=True)
    same = [one == other for one, other in pairs]
    return sum(same) / len(same)


def _predicted_s(
    options: CheckOptions,
    plan: Path,
    name: str,
    settings: Any,
    environment: dict[str, Any],
    hardware: str,
) -> float:
    """What the simulator says, with the pages and the limits of the run."""
    how = SimulateOptions(
        lengths="exact",
        overlaps=environment.get("overlap") == "on",
        page_size=settings.page_size,
        chunk_size=settings.chunk_size,
        max_seqs=settings.max_seqs,
        kv_memory=environment["kv_bytes"],
    )
    simulation = Simulation.open(plan, how, hardware, None, None, [])
    folder = options.work / "simulated" / name
    (found,) = simulate_policies(simulation, None, folder, None, lambda *_: None)
    return float(found.outcome.seconds)
