"""The run folder of a simulated run: steps and lengths, no texts, so that `report` can read it."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from blendrun import __version__
from blendrun.data.answers import ANSWER_SCHEMA
from blendrun.data.manifest import MANIFEST_FILE, Attempt, Manifest, read_manifest, write_manifest
from blendrun.data.results import ResultJournal
from blendrun.engine import simulation as log
from blendrun.engine.simulated_job import Outcome, SimulatedJob
from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.errors import InputError
from blendrun.schedule.plan_file import StoredPlan


def check_run_folder(run_dir: Path) -> None:
    """Raises InputError where the folder holds a real run, or no run at all but other files."""
    manifest = read_manifest(run_dir)
    if manifest is not None and not manifest.environment.get("simulated"):
        raise InputError(f"{run_dir} holds a real run", "give another --run-dir")
    files = [p for p in run_dir.iterdir() if p.is_file()] if run_dir.is_dir() else []
    if manifest is None and any(p.suffix != ".svg" for p in files):
        raise InputError(f"{run_dir} holds something else", "give another --run-dir")


def write_simulated_run(
    run_dir: Path, stored: StoredPlan, job: SimulatedJob, outcome: Outcome
) -> None:
    """Write `outcome` as a complete run of one attempt."""
    for name in (MANIFEST_FILE, "parts/*.parquet", "steps/*.parquet"):
        for path in run_dir.glob(name):
            path.unlink()
    cost, options = outcome.cost, outcome.options
    by_request = np.argsort(stored.requests["request"].to_numpy())
    row, sample = (stored.requests[name].to_numpy()[by_request] for name in ("row", "sample"))
    with ResultJournal(run_dir) as journal:
        for simulated, part in zip(outcome.ranks, outcome.parts, strict=True):
            cached = np.maximum(simulated.state.requests["num_cached"][part], 0)
            prompt_len = job.tree.prompt_len[part]
            journal.append(
                _answers(row[part], sample[part], prompt_len, cached, job.output_len[part])
            )
        journal.append_steps(steps_table(outcome))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    limits = outcome.ranks[0].state.limits
    environment = {
        "simulated": True,
        "blendrun": __version__,
        "policy": options.policy,
        "budget": outcome.budget,
        "lengths": options.lengths,
        "overlaps": outcome.overlaps,
        "tp": cost.tp,
        "dp": outcome.num_ranks,
        "cost": cost.flavour,
        "seed": options.seed,
        "length_factor": options.length_factor,
        "price_factor": options.price_factor,
        "rank_speed": {str(rank): speed for rank, speed in options.rank_speed.items()},
        "keep_sharing": options.keep_sharing,
        "kv_pages": int(limits["num_pages"]),
        "page_size": int(limits["page_size"]),
        "chunk_size": int(limits["chunk_size"]),
        "max_seqs": int(limits["max_seqs"]),
        "hardware": cost.hardware.to_table(),
        "model_shape": asdict(cost.shape),
    }
    attempts = (Attempt(started, 0.0, outcome.seconds, outcome.seconds),)
    manifest = Manifest.new(stored.path, {"job_id": stored.plan.job_id})
    write_manifest(
        run_dir,
        Manifest(
            manifest.format,
            manifest.version,
            manifest.plan,
            manifest.identity,
            environment,
            attempts,
            True,
        ),
    )


def steps_table(outcome: Outcome) -> pa.Table:
    """The step records of all ranks."""
    return pa.concat_tables(
        _steps(simulated.steps, rank, simulated.state.limits)
        for rank, simulated in enumerate(outcome.ranks)
    )


def _answers(
    row: np.ndarray[tuple[int], np.dtype[np.int64]],
    sample: np.ndarray[tuple[int], np.dtype[np.int32]],
    prompt_len: np.ndarray[tuple[int], np.dtype[np.int32]],
    cached: np.ndarray[tuple[int], np.dtype[np.int32]],
    output_len: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> pa.Table:
    columns = {field.name: pa.nulls(len(row), field.type) for field in ANSWER_SCHEMA}
    columns |= {
        "row": pa.array(row, pa.int64()),
        "output_index": pa.array(sample, pa.int32()),
        "status": pa.array(["ok"] * len(row)),
        "finish_reason": pa.array(["length"] * len(row)),
        "num_prompt_tokens": pa.array(prompt_len),
        "num_cached_tokens": pa.array(cached),
        "num_output_tokens": pa.array(output_len.astype(np.int32)),
    }
    return pa.table(columns, schema=ANSWER_SCHEMA)


def _steps(steps: np.ndarray, rank: int, limits: np.void) -> pa.Table:
    whole = steps.astype(np.int64)
    zeros = np.zeros(len(steps))
    columns = {
        "attempt": np.full(len(steps), 1),
        "rank": np.full(len(steps), rank),
        "step": np.arange(1, len(steps) + 1),
        "start_s": steps[:, log.START],
        "step_s": steps[:, log.SECONDS],
        "prefill_tokens": whole[:, log.PREFILL],
        "decode_tokens": whole[:, log.DECODE],
        "output_tokens": whole[:, log.HEADS],
        "running": whole[:, log.RUNNING],
        "running_left": whole[:, log.RUNNING_LEFT],
        "waiting": whole[:, log.WAITING],
        "finished": whole[:, log.FINISHED],
        "pages_used": whole[:, log.PAGES],
        "pages_idle": whole[:, log.IDLE],
        "num_pages": np.full(len(steps), int(limits["num_pages"])),
        "preemptions": whole[:, log.PREEMPTED],
        "recomputed_tokens": whole[:, log.RECOMPUTED],
        "predicted_compute_s": steps[:, log.WORK],
        "predicted_memory_s": steps[:, log.MEMORY],
        "decide_s": zeros,
        "schedule_s": zeros,
        "attention_s": zeros,
        "model_s": steps[:, log.SECONDS],
        "sample_s": zeros,
    }
    return pa.table(columns, schema=STEP_SCHEMA)
