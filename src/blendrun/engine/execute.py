"""Execute a plan on this machine: open the run folder, run what is not answered, write outputs.

The same call starts a run and continues it. At the end every input row is in the outputs.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.cost.tensor_shards import check_tp
from blendrun.data.answer_keys import AnswerKeys, has_keys, read_keys
from blendrun.data.columns import ColumnNames
from blendrun.data.detokenizer import Detokenizer
from blendrun.data.exports import Export, drop_exports
from blendrun.data.manifest import Manifest, read_manifest, write_manifest
from blendrun.data.model_files import resolve_model
from blendrun.data.output_files import OUTPUT_NAMES, OutputFiles, parts_of
from blendrun.data.outputs import write_outputs
from blendrun.data.renumber import renumber
from blendrun.data.results import ResultJournal
from blendrun.data.sources import SourceFile, check_sources, inputs_hash
from blendrun.data.unfinished import UNFINISHED_SCHEMA
from blendrun.engine.attempt import ModelLoader, Ranks, RunAttempt, RunEvents
from blendrun.engine.deadline import Deadline
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.loaded_model import find_model
from blendrun.engine.policy import check_policy
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.vllm_checks import check_vllm
from blendrun.errors import InputError, PlanError
from blendrun.schedule.continued_run import check_continues, plan_keys
from blendrun.schedule.plan_file import read_header
from blendrun.schedule.plan_record import Plan
from blendrun.units import count_of


@dataclass(frozen=True, slots=True)
class RunResult:
    run_dir: Path
    outputs: Path  # in the format asked for
    num_rows: int  # of the outputs
    num_errors: int
    was_complete: bool  # there was nothing left to do


def execute_sample(
    plan_path: Path,
    run_dir: Path,
    settings: ExecuteSettings,
    events: RunEvents,
    load: ModelLoader | None = None,
) -> None:
    """Answer a sample of each top subtree whose output lengths nobody knows, and nothing else.

    The sample is the one that `execute_plan` begins with; its answers stay part of the run.

    Raises:
        as `execute_plan`.
    """
    with _opened(plan_path, run_dir, settings, events) as (plan, journal, manifest, keys):
        if not manifest.is_complete:
            no_limit = Deadline(0.0, None)
            run = RunAttempt(
                plan,
                settings,
                events,
                journal,
                manifest,
                keys,
                no_limit,
                load=load,
                sample_only=True,
            )
            with closing(run):
                for _ in run.windows(plan_path):
                    pass
            write_manifest(run_dir, run.manifest)


def execute_plan(
    plan_path: Path,
    run_dir: Path,
    settings: ExecuteSettings,
    events: RunEvents,
    begin_s: float | None = None,
    load: ModelLoader | None = None,
    ranks: Ranks | None = None,
) -> RunResult:
    """Run a plan, or what is left of it, in `run_dir`.

    A run of the same model and settings is continued also where the input has changed since: what
    it has of rows that are still there is kept.

    `begin_s`: when the time limit began to count, on the monotonic clock; None: now. `load`: loads
    the model, on several tensor-parallel ranks where the settings or the plan say so; None: on one.
    `ranks` do the work where there are several data-parallel ones, and are closed before outputs
    are written.

    Raises:
        TimeLimitError: the time is over before all rows are answered; what is finished is saved.
        PlanError: the plan, its inputs and the folder do not fit each other.
        InputError: the model cannot be loaded, or another process uses the folder.
        BackendError: the engine failed; what is finished is saved.
    """
    begin = time.monotonic()
    with _opened(plan_path, run_dir, settings, events) as (plan, journal, manifest, keys):
        counts, files = plan.counts, OutputFiles(run_dir, settings.output_part_size)
        _, sources = read_header(plan_path)
        export = _export(plan, sources, settings)
        again = settings.retry_errors and len(journal.failed()) > 0
        inputs = inputs_hash(sources)
        made_of = (manifest.outputs_of, manifest.output_part_size)
        is_written = files.path.exists() and made_of == (inputs, files.part_bytes)
        if manifest.is_complete and is_written and not again:
            path = export.write(files.path)
            write_manifest(run_dir, manifest)
            return RunResult(run_dir, path, *_num_rows(files.path), True)
        deadline = Deadline(begin if begin_s is None else begin_s, settings.time_limit_s)
        manifest = replace(manifest, is_complete=False)
        run = RunAttempt(
            plan, settings, events, journal, manifest, keys, deadline, load=load, ranks=ranks
        )
        with closing(run):  # while the folder is still locked
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
            files.part_bytes,
        )
        path = export.write(outputs)
        run.update(wall_s=time.monotonic() - begin)
        done = replace(
            run.manifest,
            is_complete=True,
            outputs_of=inputs,
            output_part_size=files.part_bytes,
        )
        write_manifest(run_dir, done)
    return RunResult(run_dir, path, *_num_rows(outputs), False)


@contextmanager
def _opened(
    plan_path: Path, run_dir: Path, settings: ExecuteSettings, events: RunEvents
) -> Iterator[tuple[Plan, ResultJournal, Manifest, AnswerKeys]]:
    """The plan, checked against its inputs; the run folder, which belongs to it; what it wants."""
    plan, sources = read_header(plan_path)
    _check_executable(plan, settings)
    check_sources(sources)
    _export(plan, sources, settings).check()
    for name in OUTPUT_NAMES:
        if (run_dir / name).exists() and read_manifest(run_dir) is None:
            raise InputError(
                f"{run_dir} holds an {name} that no run has made",
                "give another --run-dir, or move that away",
            )
    keys = plan_keys(plan_path, plan)
    counts, identity = plan.counts, settings.identity(plan)
    with ResultJournal(run_dir) as journal:
        new = Manifest.new(plan_path, identity, counts.requests, counts.rejected)
        # the same job, perhaps from another place
        manifest = replace(read_manifest(run_dir) or new, plan=new.plan)
        overlap = check_continues(journal, manifest, identity, keys)
        if overlap is not None:
            if "weights" in manifest.identity:
                weights = settings.weights_identity(find_model(plan, settings))
                manifest.check_same_job({"weights": weights}, run_dir)
            manifest = replace(
                new,
                identity={**manifest.identity, **identity},
                environment=manifest.environment,
                attempts=manifest.attempts,
            )
            renumber(run_dir, read_keys(run_dir), keys, plan.job_id, manifest)
            journal.reload()
            events.note(
                f"the input has changed: {count_of(overlap.num_kept, 'answer')} kept, "
                f"{count_of(overlap.num_new, 'row')} new"
            )
        if not has_keys(run_dir, plan.job_id):
            keys.write(run_dir, plan.job_id)
        yield plan, journal, manifest, keys


def _export(plan: Plan, sources: Sequence[SourceFile], settings: ExecuteSettings) -> Export:
    chats = plan.settings.get("messages_column") or ColumnNames().messages

    def tokens() -> Detokenizer:
        spec = settings.model or plan.model.spec
        files = resolve_model(spec, weights=False, engine=settings.engine)
        return Detokenizer.from_folder(files.folder)

    return Export(settings.output_format, sources, plan.model.name, plan.job_id, chats, tokens)


def _check_executable(plan: Plan, settings: ExecuteSettings) -> None:
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
    check_policy(plan, settings.policy)
    if settings.engine == "vllm":
        check_vllm(settings)
    tp = settings.tp or plan.tp
    if settings.engine == "native" and (tp > 1 or plan.engine != "native"):
        files = resolve_model(settings.model or plan.model.spec, weights=False)
        config = DecoderConfig.from_hf(files.config)
        check_tp(tp, config.num_heads, config.num_kv_heads, plan.model.name)


def _num_rows(outputs: Path) -> tuple[int, int]:
    """Rows of the outputs, and error rows among them."""
    columns = [pq.read_table(part, columns=["status"])["status"] for part in parts_of(outputs)]
    errors = sum(pc.sum(pc.equal(status, "error")).as_py() or 0 for status in columns)
    return sum(map(len, columns)), errors
