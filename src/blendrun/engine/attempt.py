"""One attempt at a run: its plan window by window, with a model that is loaded once."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.compiled import is_first_use
from blendrun.cost import machine
from blendrun.data.answer_keys import AnswerKeys
from blendrun.data.answers import answers_table
from blendrun.data.manifest import Attempt, Manifest, write_manifest
from blendrun.data.model_files import ModelFiles
from blendrun.data.results import ResultJournal, keys_of, read_answers
from blendrun.engine.assembly import assemble
from blendrun.engine.deadline import Deadline
from blendrun.engine.loaded_model import LoadedModel, find_model
from blendrun.engine.loop import Advance
from blendrun.engine.policy import with_policy
from blendrun.engine.requests import EngineRequests
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BackendError
from blendrun.schedule.compile_batcher import compile_batcher
from blendrun.schedule.plan_file import read_plan, window_paths
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.step.begin import sampled
from blendrun.schedule.step.state import UNLEARNED
from blendrun.tree.prefix_tree import Int32
from blendrun.tree.strata import top_subtrees
from blendrun.units import count_of

# loads the model, and starts the other ranks where the settings ask for several
ModelLoader = Callable[[ModelFiles, ExecuteSettings], LoadedModel]


@dataclass(frozen=True, slots=True)
class RunEvents:
    """What the caller wants to hear of."""

    begin: Callable[[int, int], None]  # rows answered before, rows in all
    note: Callable[[str], None]  # a line of news
    step: Callable[[Advance], None]


class WindowRows(NamedTuple):
    """The rows of a window."""

    num_answers: npt.NDArray[np.int64]  # of each row, error rows included
    is_scored: npt.NDArray[np.bool_]  # its answers are the scores of its continuations
    rejected: pa.Table


@dataclass(frozen=True, slots=True, eq=False)
class WindowWork:
    """Requests of a window that ranks are to answer, and what they have to know of the attempt."""

    plan_path: Path
    plan: Plan
    number: int  # of the window
    settings: ExecuteSettings
    requests: EngineRequests
    pending: Int32  # in planned order
    journal: ResultJournal
    attempt: int
    deadline: Deadline
    files: ModelFiles
    note: Callable[[str], None]
    step: Callable[[Advance], None]
    describe: Callable[[dict[str, Any]], None]  # what runs, and why; called once


class Ranks(Protocol):
    """Data-parallel ranks that answer requests in this process's stead."""

    def answer(self, work: WindowWork) -> float:
        """Answer all of `work`; when generation began, on the monotonic clock.

        Raises:
            what stops a run, from whichever rank; what is finished is saved.
        """

    def close(self) -> None:
        """End all processes; nothing is left of them when this returns."""


class RunAttempt:
    """Answers what a run has no answer for; the model is loaded when the first row needs it.

    Whoever makes one closes it.
    """

    def __init__(
        self,
        plan: Plan,
        settings: ExecuteSettings,
        events: RunEvents,
        journal: ResultJournal,
        manifest: Manifest,
        keys: AnswerKeys,
        deadline: Deadline,
        *,
        load: ModelLoader | None = None,
        ranks: Ranks | None = None,
        sample_only: bool = False,
    ) -> None:
        """`load` loads the model; None: as one rank. `ranks` do the work; None: this process."""
        attempt = Attempt(datetime.now(UTC).isoformat(timespec="seconds"))
        manifest = replace(manifest, attempts=(*manifest.attempts, attempt))
        self._sample_only, self._ranks = sample_only, ranks
        self._plan = self._ordered = plan
        self._events = events
        self._settings = replace(settings, tp=settings.tp or plan.tp)
        self._load_model = load
        self._journal, self._keys, self._deadline = journal, keys, deadline
        self.manifest = manifest
        self._model: LoadedModel | None = None
        self._loaded_at = 0.0
        self._finished = journal.finished()
        if settings.retry_errors:
            self._finished = np.setdiff1d(self._finished, journal.failed())
        self._unfinished = journal.read_unfinished()
        self._saved_rows = self._output_tokens = 0  # of the windows before this one
        self._last_tokens = 0  # with this one

    def close(self) -> None:
        """Let go of the model; other ranks end."""
        if self._ranks is not None:
            self._ranks.close()
        if self._model is not None:
            self._model.close()
            self._model = None

    def windows(self, plan_path: Path) -> Iterator["WindowRows"]:
        """Answers every window in turn; tells of each what its outputs are made of."""
        counts, first = self._plan.counts, 0
        done = len(self._finished) + counts.rejected
        self._events.begin(done, counts.requests + counts.rejected)
        self._save()
        for number, path in enumerate(window_paths(plan_path, self._plan)):
            stored = read_plan(path)
            requests = EngineRequests.of(stored, self._settings.ignore_eos, self._keys)
            self._ordered, requests = with_policy(self._plan, requests, self._settings.policy)
            pending = _pending(requests, self._finished)
            if self._sample_only:
                pending = _sample(requests, pending, self._plan.settings["seed"])
            pending = self._answer_empty(requests, pending)
            if len(pending):
                self._answer(plan_path, number, self._with_seen(requests), pending)
            num_rows = stored.plan.counts.rows
            answers = np.bincount(requests.row - first, minlength=num_rows)
            is_scored = np.zeros(num_rows, np.bool_)
            is_scored[requests.row[requests.is_scored] - first] = True
            yield WindowRows(np.maximum(answers, 1), is_scored, stored.rejected)
            first += num_rows

    def _with_seen(self, requests: EngineRequests) -> EngineRequests:
        """The requests, with the output lengths of those that are answered already."""
        own = np.flatnonzero(np.isin(requests.keys, self._finished)).astype(np.int32)
        if not len(own):
            return requests
        answers = read_answers(self._journal.run_dir, ["num_output_tokens"])
        place = np.searchsorted(keys_of(answers), requests.keys[own])
        output_len = pc.fill_null(answers["num_output_tokens"], 0).to_numpy()[place]
        answered = output_len > 0
        request, lengths = requests.seen
        seen = (
            np.concatenate([request, own[answered]]),
            np.concatenate([lengths, output_len[answered].astype(np.int32)]),
        )
        return replace(requests, seen=seen)

    def _answer_empty(self, requests: EngineRequests, pending: Int32) -> Int32:
        """Answer the requests of which nothing is to be computed; the others."""
        asks = (requests.prompt_logprobs >= 0) | requests.is_scored
        is_empty = (requests.max_tokens[pending] == 0) & ~asks[pending]
        empty = pending[is_empty]
        n = len(empty)
        self._journal.append(
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

    def update(self, **seconds: float) -> None:
        """Notes seconds of this attempt, and the memory that it has taken so far."""
        last = replace(
            self.manifest.attempts[-1],
            peak_memory_bytes=machine.peak_memory_bytes(),
            **seconds,  # type: ignore[arg-type]
        )
        attempts = (*self.manifest.attempts[:-1], last)
        self.manifest = replace(self.manifest, attempts=attempts)

    def _generate(self, requests: EngineRequests, pending: Int32) -> None:
        if self._settings.engine != "native":
            raise BackendError(f"{self._settings.engine} runs in a process of its own")
        model = self._model or self._load()
        engine = assemble(
            self._ordered,
            self._settings,
            model,
            requests,
            pending,
            self._unfinished,
            self._journal,
            len(self.manifest.attempts),
            self._loaded_at,
            self._deadline,
            self._step,
        )
        self._describe(engine.environment)
        if engine.num_continued:
            self._events.note(f"{count_of(engine.num_continued, 'unfinished answer')} to continue")
        engine.loop.run()
        self._unfinished = engine.later
        self._saved_rows += len(pending)
        self._output_tokens = self._last_tokens
        self.update(generate_s=time.monotonic() - self._loaded_at)

    def _describe(self, environment: dict[str, Any]) -> None:
        """Notes what runs, and why."""
        if self.manifest.environment != environment:
            self.manifest = replace(self.manifest, environment=environment)
            self._save()
            self._events.note(
                f"{environment['attention']} attention, {self._settings.dtype}, "
                f"{environment['kv_memory']} for KV"
            )

    def _answer(
        self, plan_path: Path, number: int, requests: EngineRequests, pending: Int32
    ) -> None:
        self._deadline.check()
        if self._ranks is None:
            self._generate(requests, pending)
            return
        begin = time.monotonic()
        work = WindowWork(
            plan_path,
            self._plan,
            number,
            self._settings,
            requests,
            pending,
            self._journal,
            len(self.manifest.attempts),
            self._deadline,
            self._identified(),
            self._events.note,
            self._step,
            self._describe,
        )
        loaded_at = self._ranks.answer(work)
        if not self._loaded_at:
            self._loaded_at = loaded_at
            self.update(load_s=loaded_at - begin)
        self._saved_rows += len(pending)
        self._output_tokens = self._last_tokens
        self.update(generate_s=time.monotonic() - self._loaded_at)

    def _load(self) -> LoadedModel:
        begin = time.monotonic()
        files = self._identified()
        self._model = (self._load_model or LoadedModel.load)(files, self._settings)
        compile_s = compile_batcher()
        self._loaded_at = time.monotonic()
        self.update(load_s=self._loaded_at - begin, compile_s=compile_s)
        return self._model

    def _identified(self) -> ModelFiles:
        """The model's files, which must be those that the run has begun with."""
        self._events.note(f"loading {self._plan.model.name}")
        files = find_model(self._plan, self._settings)
        weights = {"weights": self._settings.weights_identity(files)}
        if "weights" in self.manifest.identity:
            self.manifest.check_same_job(weights, self._journal.run_dir)
        self.manifest = replace(self.manifest, identity={**self.manifest.identity, **weights})
        if is_first_use():
            self._events.note("compiling the batcher: half a minute, once")
        return files

    def _step(self, advance: Advance) -> None:
        """Passes on what this window has done, with what the windows before it had."""
        self._last_tokens = self._output_tokens + advance.output_tokens
        self._events.step(
            replace(
                advance,
                saved_rows=self._saved_rows + advance.saved_rows,
                output_tokens=self._last_tokens,
            )
        )

    def _save(self) -> None:
        write_manifest(self._journal.run_dir, self.manifest)


def _sample(requests: EngineRequests, pending: Int32, seed: int) -> Int32:
    """Those of the pending requests that the batcher admits first to learn lengths."""
    stratum, _ = top_subtrees(requests.tree)
    stratum = np.where(requests.learned, stratum, UNLEARNED).astype(np.int32)
    wanted = sampled(requests.sequence, stratum, seed)
    chosen: Int32 = pending[np.isin(pending, wanted)]
    return chosen


def _pending(requests: EngineRequests, finished: npt.NDArray[np.int64]) -> Int32:
    """Requests without an answer, in planned order."""
    done = np.isin(requests.keys, finished)
    pending: Int32 = requests.sequence[~done[requests.sequence]]
    return pending
