"""How far a run is: from its folder alone, while it runs or after."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from blendrun.data.lock import lock_holder
from blendrun.data.manifest import Attempt, read_manifest
from blendrun.data.results import LOCK_FILE
from blendrun.data.run_counts import count_answers, sum_steps
from blendrun.errors import InputError


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Rows are answers where rows ask for several. None: not known, or not yet."""

    state: str  # "running", "complete" or "stopped"
    process: str | None  # that works on it
    rows: int | None  # of the whole job
    answered_rows: int
    error_rows: int  # those set aside by the plan among them
    rows_left: int | None
    attempts: int
    attempt_s: float | None  # of the last attempt, with loading
    rows_per_s: float | None  # of the last attempt, likewise the next two
    output_tokens_per_s: float | None
    time_left_s: float | None
    peak_memory_bytes: int | None = None  # of the last attempt, at its last note of it


def read_status(run_dir: Path) -> RunStatus:
    """Raises InputError where there is no run, PlanError where a file of it cannot be read."""
    holder = lock_holder(run_dir / LOCK_FILE)  # first: what it does later counts as not yet done
    manifest = read_manifest(run_dir)
    if manifest is None:
        if holder is not None:
            return RunStatus("running", holder, None, 0, 0, None, 0, None, None, None, None)
        raise InputError(f"{run_dir} holds no run", "name the folder that execute or run wrote")
    answers, rejected = count_answers(run_dir), manifest.num_rejected or 0
    rows = None if manifest.num_answers is None else manifest.num_answers + rejected
    left = None if rows is None else max(rows - rejected - answers.ok - answers.errors, 0)
    done = sum_steps(run_dir, len(manifest.attempts))
    is_running = holder is not None
    rate = done.finished / done.seconds if done.seconds > 0 else None
    tokens_rate = done.output_tokens / done.seconds if done.seconds > 0 else None
    return RunStatus(
        state="running" if is_running else "complete" if manifest.is_complete else "stopped",
        process=holder,
        rows=rows,
        answered_rows=answers.ok,
        error_rows=answers.errors + rejected,
        rows_left=left,
        attempts=len(manifest.attempts),
        attempt_s=_attempt_s(manifest.attempts[-1], is_running, done.seconds)
        if manifest.attempts
        else None,
        rows_per_s=rate,
        output_tokens_per_s=tokens_rate,
        peak_memory_bytes=manifest.attempts[-1].peak_memory_bytes if manifest.attempts else None,
        time_left_s=left / rate if is_running and rate and left is not None else None,
    )


def _attempt_s(attempt: Attempt, is_running: bool, generated_s: float) -> float:
    """How long it has been going, or went; of a killed one only what its files tell."""
    if is_running:
        started = datetime.fromisoformat(attempt.started)
        return max((datetime.now(UTC) - started).total_seconds(), 0.0)
    return attempt.wall_s or (attempt.load_s or 0.0) + generated_s
