"""Execute a plan on this machine: open the run folder, run what is not answered, write outputs.

The same call starts a run and continues it. At the end every input row is in `outputs.parquet`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.data.columns import ColumnNames
from blendrun.data.exports import Export, drop_exports
from blendrun.data.manifest import Manifest, read_manifest, write_manifest
from blendrun.data.outputs import OUTPUTS_FILE, write_outputs
from blendrun.data.results import ResultJournal
from blendrun.data.sources import SourceFile, check_sources
from blendrun.data.unfinished import UNFINISHED_SCHEMA
from blendrun.engine.attempt import RunAttempt, RunEvents
from blendrun.engine.deadline import Deadline
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError, PlanError
from blendrun.schedule.plan_file import read_header
from blendrun.schedule.plan_record import Plan


@dataclass(frozen=True, slots=True)
class RunResult:
    run_dir: Path
    outputs: Path  # in the format asked for
    num_rows: int  # of the outputs
    num_errors: int
    was_complete: bool  # there was nothing left to do


def execute_sample(
    plan_path: Path, run_dir: Path, settings: ExecuteSettings, events: RunEvents
) -> None:
    """Answer a sample of each top subtree whose output lengths nobody knows, and nothing else.

    The sample is the one that `execute_plan` begins with; its answers stay part of the run.

    Raises:
        as `execute_plan`.
    """
    with _opened(plan_path, run_dir, settings) as (plan, journal, manifest):
        if not manifest.is_complete:
            no_limit = Deadline(0.0, None)
            run = RunAttempt(plan, settings, events, journal, manifest, no_limit, sample_only=True)
            for _ in run.windows(plan_path):
                pass
            write_manifest(run_dir, run.manifest)


def execute_plan(
    plan_path: Path,
    run_dir: Path,
    settings: ExecuteSettings,
    events: RunEvents,
    begin_s: float | None = None,
) -> RunResult:
    """Run a plan, or what is left of it, in `run_dir`.

    `begin_s`: when the time limit began to count, on the monotonic clock; None: now.

    Raises:
        TimeLimitError: the time is over before all rows are answered; what is finished is saved.
        PlanError: the plan, its inputs and the folder do not fit each other.
        InputError: the model cannot be loaded, or another process uses the folder.
        BackendError: the engine failed; what is finished is saved.
    """
    begin = time.monotonic()
    with _opened(plan_path, run_dir, settings) as (plan, journal, manifest):
        counts, outputs = plan.counts, run_dir / OUTPUTS_FILE
        num_rows = counts.requests + counts.rejected
        _, sources = read_header(plan_path)
        export = _export(plan, sources, settings)
        again = settings.retry_errors and len(journal.failed()) > 0
        if manifest.is_complete and outputs.is_file() and not again:
            path = export.write(outputs)
            return RunResult(run_dir, path, num_rows, _num_errors(outputs), True)
        deadline = Deadline(begin if begin_s is None else begin_s, settings.time_limit_s)
        manifest = replace(manifest, is_complete=False)
        run = RunAttempt(plan, settings, events, journal, manifest, deadline)
        windows = list(run.windows(plan_path))
        journal.save_unfinished(UNFINISHED_SCHEMA.empty_table())
        drop_exports(run_dir)
        outputs = write_outputs(
            run_dir,
            sources,
            counts.rows,
            pa.concat_tables([window.rejected for window in windows]),
            np.concatenate([window.num_answers for window in windows]),
            np.concatenate([window.is_scored for window in windows]),
            [window.rows for window in windows],
        )
        path = export.write(outputs)
        run.update(wall_s=time.monotonic() - begin)
        write_manifest(run_dir, replace(run.manifest, is_complete=True))
    return RunResult(run_dir, path, num_rows, _num_errors(outputs), False)


@contextmanager
def _opened(
    plan_path: Path, run_dir: Path, settings: ExecuteSettings
) -> Iterator[tuple[Plan, ResultJournal, Manifest]]:
    """The plan, checked against its inputs, and the run folder, which belongs to it."""
    plan, sources = read_header(plan_path)
    _check_executable(plan)
    check_sources(sources)
    _export(plan, sources, settings).check()
    identity = {
        "job_id": plan.job_id,
        "dtype": settings.dtype,
        "ignore_eos": settings.ignore_eos,
        "deterministic": settings.deterministic,
    }
    if (run_dir / OUTPUTS_FILE).exists() and read_manifest(run_dir) is None:
        raise InputError(
            f"{run_dir} holds an {OUTPUTS_FILE} that no run has made",
            "give another --run-dir, or move that file away",
        )
    with ResultJournal(run_dir) as journal:
        counts = plan.counts
        manifest = read_manifest(run_dir) or Manifest.new(
            plan_path, identity, counts.requests, counts.rejected
        )
        manifest.check_same_job(identity, run_dir)
        yield plan, journal, manifest


def _export(plan: Plan, sources: Sequence[SourceFile], settings: ExecuteSettings) -> Export:
    chats = plan.settings.get("messages_column") or ColumnNames().messages
    return Export(settings.output_format, sources, plan.model.name, plan.job_id, chats)


def _check_executable(plan: Plan) -> None:
    if plan.window is not None:
        raise PlanError(
            f"this is window {plan.window} of a plan; its answers belong into that plan's run",
            "execute the plan itself",
        )
    if not plan.model.fingerprint:
        raise InputError(
            f"{plan.model.name} is a model shape without weights: it can be planned, not executed",
            "plan with a checkpoint: --model FOLDER, FILE.gguf or a Hugging Face id",
        )
    if plan.tp != 1 or plan.dp != 1:
        raise PlanError(
            f"tensor and data parallelism are not there yet (the plan is for --tp {plan.tp} "
            f"--dp {plan.dp})",
            "plan with --tp 1 --dp 1",
        )


def _num_errors(outputs: Path) -> int:
    status = pq.read_table(outputs, columns=["status"])["status"]
    return int(pc.sum(pc.equal(status, "error")).as_py() or 0)
