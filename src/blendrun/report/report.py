"""A run's report: figures by name, ready to be printed and saved."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.cost.optimum import Optimum
from blendrun.data.disk import atomic_file
from blendrun.data.manifest import Manifest
from blendrun.data.results import read_steps
from blendrun.report.bounds import run_optimum
from blendrun.report.explained import Explained, explain_run
from blendrun.report.gap import Gap
from blendrun.report.metrics import RunMetrics, read_metrics
from blendrun.report.remedies import advice, finding
from blendrun.report.timeline import timeline
from blendrun.schedule.plan_file import read_plan, window_paths
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.run_plan import plan_of_run

REPORT_FOLDER = "report"
_DERIVED = ("computed_prompt_tokens", "sharing_frac", "input_tokens_per_s", "output_tokens_per_s",
            "total_tokens_per_s", "mean_running", "mean_page_use_frac", "other_s", "outside_s",
            "outside_frac", "padding_frac")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes. Of KV pages only those that were used are resident."""

    peak: int  # of the attempt that had most
    weights: int
    kv_pages: int

    @property
    def above(self) -> int:
        """What the process took beside weights and KV pages; below 0 where pages were not used."""
        return self.peak - self.weights - self.kv_pages


@dataclass(frozen=True, slots=True)
class Report:
    run_dir: Path
    plan: Plan
    manifest: Manifest
    metrics: RunMetrics
    optimum: Optimum | None  # None while the run is not complete
    timeline: pa.Table
    explained: Explained | None  # None where nothing ran

    @property
    def unknown(self) -> tuple[str, ...]:
        """Figures that the run's engine does not tell."""
        return tuple(self.manifest.environment.get("unknown", ()))

    @property
    def gap(self) -> Gap | None:
        """Where the wall time went."""
        return self.explained.facts.gap if self.explained else None

    @property
    def finding(self) -> str:
        """How far from the optimum, and what cost most; or why there is nothing to tell."""
        if self.explained:
            return finding(self.explained.facts)
        if not self.manifest.is_complete:
            return "nothing ran yet"
        why = "there are error rows only" if self.plan.counts.rows else "the input has no rows"
        return f"nothing ran: {why}"

    @property
    def advice(self) -> str:
        """What to do about the largest part; empty where there is none."""
        return advice(self.explained.facts) if self.explained else ""

    @property
    def ideal_frac(self) -> float | None:
        """Share of the ideal optimum that the run reached."""
        return self._frac(self.optimum.ideal_s if self.optimum else None)

    @property
    def practical_frac(self) -> float | None:
        return self._frac(self.optimum.practical_s if self.optimum else None)

    @property
    def once_practical_frac(self) -> float | None:
        """Likewise, of the bound for attention that reads shared prefixes once per step."""
        return self._frac(self.optimum.once_practical_s if self.optimum else None)

    @property
    def peak_memory(self) -> PeakMemory | None:
        """None where no attempt has told, as in a simulated run."""
        peaks = [attempt.peak_memory_bytes or 0 for attempt in self.manifest.attempts]
        environment = self.manifest.environment
        if not any(peaks) or "weight_bytes" not in environment:
            return None
        return PeakMemory(max(peaks), environment["weight_bytes"], environment["kv_bytes"])

    def values(self) -> Mapping[str, int | float | None]:
        """Every figure by its stable name."""
        values: dict[str, int | float | None] = asdict(self.metrics)
        values |= {name: getattr(self.metrics, name) for name in _DERIVED}
        counts, times = self.plan.counts, self.plan.times
        values["rows"] = counts.rows
        values["rejected_rows"] = counts.rejected
        values["error_rows"] = self.metrics.error_rows + counts.rejected
        values["sharing_possible_frac"] = counts.sharing_possible
        values["sharing_planned_frac"] = counts.sharing_kept
        values["planned_s"] = times.predicted_s
        if self.optimum:
            values |= {f"optimum_{k}": v for k, v in asdict(self.optimum).items()}
        memory = self.peak_memory
        values["peak_memory_bytes"] = memory.peak if memory else None
        values["peak_above_bytes"] = memory.above if memory else None
        values["ideal_frac"] = self.ideal_frac
        values["practical_frac"] = self.practical_frac
        values["once_practical_frac"] = self.once_practical_frac
        if self.gap:
            values |= {f"gap_{part}_s": seconds for part, seconds in self.gap.seconds.items()}
            values["gap_wall_s"] = self.gap.wall_s
            values["gap_gradient_compute"], values["gap_gradient_memory"] = self.gap.gradient
        return values | dict.fromkeys(self.unknown)

    def _frac(self, best_s: float | None) -> float | None:
        generate_s = self.metrics.generate_s
        return best_s / generate_s if best_s is not None and generate_s > 0 else None


def make_report(run_dir: Path) -> Report:
    """The report of a run, complete or not.

    Raises:
        InputError: the folder holds no run.
        PlanError: its plan or its parts cannot be read.
    """
    manifest, path, plan = plan_of_run(run_dir)
    windows = map(read_plan, window_paths(path, plan))
    records = read_steps(run_dir)
    metrics = read_metrics(run_dir, manifest, records)
    optimum = run_optimum(windows, manifest, run_dir)
    explained = explain_run(run_dir, path, manifest, plan, records, metrics, optimum)
    return Report(run_dir, plan, manifest, metrics, optimum, timeline(records), explained)


def save_report(report: Report) -> Path:
    """Write `report.parquet` (one row per metric), `report.json`, `steps.parquet` and
    `timeline.parquet`."""
    folder = report.run_dir / REPORT_FOLDER
    folder.mkdir(exist_ok=True)
    values = report.values()
    table = pa.table(
        {
            "metric": list(values),
            "value": [None if v is None else float(v) for v in values.values()],
        },
        schema=pa.schema([("metric", pa.string()), ("value", pa.float64())]),
    )
    pq.write_table(table, folder / "report.parquet")
    pq.write_table(report.timeline, folder / "timeline.parquet")
    if report.explained:
        pq.write_table(report.explained.table(), folder / "steps.parquet")
    with atomic_file(folder / "report.json", several_writers=True) as file:
        file.write(report_json(report).encode() + b"\n")
    return folder


def report_values(report: Report) -> dict[str, Any]:
    """Every figure, and what run it is of."""
    gap = report.gap
    about: dict[str, Any] = {
        "run": str(report.run_dir),
        "complete": report.manifest.is_complete,
        "model": report.plan.model.name,
        "policy": report.manifest.environment.get("policy", report.plan.policy),
        "gap_largest": gap.largest if gap else None,
    }
    return about | dict(report.values())


def report_json(report: Report) -> str:
    """One line of JSON with every figure."""
    return json.dumps(report_values(report), allow_nan=False)
