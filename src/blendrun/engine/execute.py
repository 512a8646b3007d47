"""Execute a plan on this machine: open the run folder, run what is not answered, write outputs.

The same call starts a run and continues it. At the end every input row is in `outputs.parquet`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.compiled import is_first_use
from blendrun.data.answers import answers_table
from blendrun.data.outputs import OUTPUTS_FILE, write_outputs
from blendrun.data.results import ResultJournal
from blendrun.data.sources import check_sources
from blendrun.engine.assembly import assemble, find_model
from blendrun.engine.loop import Advance
from blendrun.engine.requests import EngineRequests
from blendrun.engine.run_dir import Attempt, Manifest, read_manifest, write_manifest
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError, PlanError
from blendrun.schedule.plan_file import StoredPlan, read_plan
from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True)
class RunResult:
    run_dir: Path
    outputs: Path
    num_rows: int  # of the outputs
    num_errors: int
    was_complete: bool  # there was nothing left to do


@dataclass(frozen=True, slots=True)
class RunEvents:
    """What the caller wants to hear of."""

    begin: Callable[[int, int], None]  # rows answered before, rows in all
    note: Callable[[str], None]  # a line of news
    step: Callable[[Advance], None]


def execute_plan(
    plan_path: Path, run_dir: Path, settings: ExecuteSettings, events: RunEvents
) -> RunResult:
    """Run a plan, or what is left of it, in `run_dir`.

    Raises:
        PlanError: the plan, its inputs and the folder do not fit each other.
        InputError: the model cannot be loaded, or another process uses the folder.
        BackendError: the engine failed; what is finished is saved.
    """
    begin = time.monotonic()
    stored = read_plan(plan_path)
    _check_executable(stored)
    check_sources(stored.sources)
    identity = {
        "job_id": stored.plan.job_id,
        "dtype": settings.dtype,
        "ignore_eos": settings.ignore_eos,
    }
    if (run_dir / OUTPUTS_FILE).exists() and read_manifest(run_dir) is None:
        raise InputError(
            f"{run_dir} holds an {OUTPUTS_FILE} that no run has made",
            "give another --run-dir, or move that file away",
        )
    with ResultJournal(run_dir) as journal:
        manifest = read_manifest(run_dir) or Manifest.new(plan_path, identity)
        manifest.check_same_job(identity, run_dir)
        counts, outputs = stored.plan.counts, run_dir / OUTPUTS_FILE
        num_rows = counts.requests + counts.rejected
        if manifest.is_complete and outputs.is_file():
            return RunResult(run_dir, outputs, num_rows, _num_errors(outputs), True)
        requests = EngineRequests.of(stored, settings.ignore_eos)
        pending = _answer_empty(requests, _pending(requests, journal), journal)
        events.begin(num_rows - len(pending), num_rows)
        attempt = Attempt(datetime.now(UTC).isoformat(timespec="seconds"))
        manifest = replace(manifest, attempts=(*manifest.attempts, attempt))
        write_manifest(run_dir, manifest)
        if len(pending):
            manifest = _generate(stored, settings, events, journal, requests, pending, manifest)
        num_answers = np.maximum(np.bincount(requests.row, minlength=counts.rows), 1)
        outputs = write_outputs(run_dir, stored.sources, counts.rows, stored.rejected, num_answers)
        manifest = _update_attempt(manifest, wall_s=time.monotonic() - begin)
        write_manifest(run_dir, replace(manifest, is_complete=True))
    return RunResult(run_dir, outputs, num_rows, _num_errors(outputs), False)


def _generate(
    stored: StoredPlan,
    settings: ExecuteSettings,
    events: RunEvents,
    journal: ResultJournal,
    requests: EngineRequests,
    pending: Int32,
    manifest: Manifest,
) -> Manifest:
    """Answer the pending requests; the manifest with what is known afterwards."""
    begin = time.monotonic()
    events.note(f"loading {stored.plan.model.name}")
    files = find_model(stored.plan, settings)
    weights = {"weights": files.weights_fingerprint()}
    if "weights" in manifest.identity:
        manifest.check_same_job(weights, journal.run_dir)
    manifest = replace(manifest, identity={**manifest.identity, **weights})
    if is_first_use():
        events.note("compiling the batcher: half a minute, once")
    engine = assemble(
        stored.plan,
        settings,
        files,
        requests,
        pending,
        journal,
        len(manifest.attempts),
        events.step,
    )
    manifest = replace(manifest, environment=engine.environment)
    loaded = time.monotonic()
    manifest = _update_attempt(manifest, load_s=loaded - begin)
    write_manifest(journal.run_dir, manifest)
    events.note(
        f"{engine.environment['attention']} attention, {settings.dtype}, "
        f"{engine.environment['kv_memory']} for KV"
    )
    engine.loop.run()
    return _update_attempt(manifest, generate_s=time.monotonic() - loaded)


def _update_attempt(manifest: Manifest, **seconds: float) -> Manifest:
    last = replace(manifest.attempts[-1], **seconds)  # type: ignore[arg-type]
    return replace(manifest, attempts=(*manifest.attempts[:-1], last))


def _pending(requests: EngineRequests, journal: ResultJournal) -> Int32:
    """Requests without an answer, in planned order."""
    done = np.isin(requests.keys, journal.finished())
    pending: Int32 = requests.sequence[~done[requests.sequence]]
    return pending


def _answer_empty(requests: EngineRequests, pending: Int32, journal: ResultJournal) -> Int32:
    """Answer the requests of which nothing is to be computed; the others."""
    is_empty = (requests.max_tokens[pending] == 0) & (requests.prompt_logprobs[pending] < 0)
    empty = pending[is_empty]
    n = len(empty)
    journal.append(
        answers_table(
            row=requests.row[empty],
            output_index=requests.sample[empty],
            output_text=[""] * n,
            output_token_ids=[[]] * n,
            finish_reason=["length"] * n,
            num_prompt_tokens=requests.prompt_len[empty],
            num_cached_tokens=np.zeros(n, np.int32),
        )
    )
    rest: Int32 = pending[~is_empty]
    return rest


def _check_executable(stored: StoredPlan) -> None:
    plan = stored.plan
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
