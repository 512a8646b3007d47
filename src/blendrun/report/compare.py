"""Runs beside each other, and a plan's prediction beside what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blendrun.errors import InputError
from blendrun.report.gap import PARTS
from blendrun.report.remedies import TITLES
from blendrun.report.report import Report
from blendrun.schedule.plan_record import Plan
from blendrun.units import format_difference, format_seconds


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a run and another one; seconds by part, below 0 where the run took less."""

    seconds: Mapping[str, float]
    wall_s: float

    @property
    def largest(self) -> str | None:
        """The part that differs most in the direction of the whole; None where nothing differs."""
        sign = 1.0 if self.wall_s >= 0 else -1.0
        name = max(self.seconds, key=lambda part: sign * self.seconds[part])
        return name if sign * self.seconds[name] > 0 else None

    def sentence(self, other: str) -> str:
        """What changed against the run called `other`."""
        how = "slower" if self.wall_s >= 0 else "faster"
        text = f"{format_seconds(abs(self.wall_s))} {how} than {other}"
        part = self.largest
        if part is None:
            return text
        return f"{text}, most by {TITLES[part]} ({format_difference(self.seconds[part])})"


def differences(reports: Sequence[Report]) -> list[Difference]:
    """Of every run after the first, against the first.

    Raises:
        InputError: a run has no step yet.
    """
    for report in reports:
        if report.gap is None:
            raise InputError(f"{report.run_dir} has run nothing yet", "compare runs that have")
    first, *others = [report.gap for report in reports if report.gap is not None]
    return [
        Difference(
            {part: other.seconds[part] - first.seconds[part] for part in PARTS},
            other.wall_s - first.wall_s,
        )
        for other in others
    ]


def job_differs(reports: Sequence[Report]) -> bool:
    """Whether these are runs of different jobs, whose seconds say little about each other."""
    return len({report.plan.job_id for report in reports}) > 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """A figure as a plan has it, and as the run has it; None: not known of the run."""

    name: str
    unit: str  # tokens, s or requests
    planned: float
    happened: float | None

    @property
    def ratio(self) -> float | None:
        """The run's over the plan's."""
        known = self.happened is not None and self.planned
        return self.happened / self.planned if known and self.happened is not None else None


def against_plan(report: Report, plan: Plan) -> list[Outcome]:
    """What `plan` said, and what came of it; figures of a run that is not complete are so far."""
    counts, times, metrics, gap = plan.counts, plan.times, report.metrics, report.gap
    best, ranks = report.optimum, report.manifest.environment.get("dp", 1)
    planned_read_s, planned_s = times.memory_s, times.practical_s
    read_s = best.memory_s if best else None
    best_s = best.practical_s / ranks if best else None
    if plan.shared_reads:
        planned_read_s, planned_s = times.once_memory_s, times.once_practical_s
        read_s = best.once_memory_s if best else None
        best_s = best.once_practical_s / ranks if best else None
    generated_s = gap.wall_s - gap.seconds["loading"] if gap else None
    return [
        Outcome("requests", "requests", counts.requests, metrics.answered_rows),
        Outcome("prompt_tokens", "tokens", counts.prompt_tokens, metrics.prompt_tokens),
        Outcome(
            "computed_prompt_tokens", "tokens", counts.computed_prompt_tokens,
            metrics.prefill_tokens - metrics.recomputed_tokens,
        ),
        Outcome(
            "output_tokens", "tokens", counts.expected_output_tokens, metrics.output_tokens
        ),
        Outcome(
            "compute_s", "s", times.shared_compute_s, best.shared_compute_s if best else None
        ),
        Outcome("memory_s", "s", planned_read_s, read_s),
        Outcome("practical_s", "s", planned_s, best_s),
        Outcome("predicted_s", "s", times.predicted_s, generated_s),
    ]  # fmt: skip


def predicted_well(report: Report, plan: Plan) -> bool | None:
    """Whether the run's time lies in the predicted range; None where nothing ran."""
    gap = report.gap
    if gap is None:
        return None
    took_s = gap.wall_s - gap.seconds["loading"]
    return plan.times.predicted_low_s <= took_s <= plan.times.predicted_high_s
