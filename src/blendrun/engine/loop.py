"""The run loop: `next_batch`, `run`, `commit`, until every request has its answer.

Finished requests go to the journal as soon as `flush_interval_s` has passed, in the order in which
they end. What unfinished ones have is saved less often, and whenever the run stops: a killed run
loses what came after that and nothing else.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from blendrun.cost.cost_model import CostModel
from blendrun.data.answers import answers_table
from blendrun.data.results import RankJournal, ResultJournal
from blendrun.data.scores import Score
from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.begun import begun_table, to_continue
from blendrun.engine.deadline import Deadline
from blendrun.engine.figures_of import figures_of
from blendrun.engine.generations import Generation, Generations
from blendrun.engine.rank_figures import RankFigures
from blendrun.engine.requests import EngineRequests
from blendrun.engine.step_log import StepLog, StepRecord
from blendrun.engine.step_result import EngineCounts, StepResult
from blendrun.engine.unfinished import Unfinished
from blendrun.schedule.batch import Batch, Freed
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32


class Backend(Protocol):
    def run(self, batch: Batch) -> StepResult: ...


class Cache(Protocol):
    """Where K and V lie: `PrefixCache`, or what stands for an engine's own."""

    @property
    def num_pages(self) -> int: ...

    def begin_step(self, batch: Batch) -> None: ...

    def free(self, freed: Freed) -> None:
        """These have ended, or are not needed any more."""

    def check_integrity(self, free_pages: int) -> None:
        """At the end. Raises BackendError where it holds anything else than the batcher says."""


class Scores(Protocol):
    """Log-probabilities of prompts, for requests that ask; the methods of `PromptScores`."""

    def take(self, request: int) -> TokenLogprobs | None: ...

    def take_score(self, request: int) -> Score | None: ...

    def forget(self, request: int) -> None: ...


class Feed(Protocol):
    """Where one of several ranks gets its requests from, and whom it tells what became of them."""

    def begins(self, requests: Int32) -> None:
        """These come in, and are computed next."""

    def saved(self, requests: Int32) -> None:
        """These are answered, safe on disk."""

    def goes_on(self, loop: "RunLoop", is_dry: bool) -> bool:
        """Between steps; waits for more where nothing is left to do. False: this is the end."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What a run has done since it began, for progress lines."""

    saved_rows: int  # in this attempt, safe on disk
    running: int
    waiting: int
    output_tokens: int
    elapsed_s: float


class RunLoop:
    """One attempt at the pending requests of a run.

    `twins` take the answer of another request that runs; `too_large` is the error of one that does
    not fit into the KV pages.
    """

    def __init__(
        self,
        requests: EngineRequests,
        batcher: Batcher,
        cache: Cache,
        backend: Backend,
        generations: Generations,
        scores: Scores,
        journal: ResultJournal | RankJournal,
        unfinished: Unfinished,
        cost: CostModel,
        too_large: Callable[[int], str],
        *,
        twins: Mapping[int, Int32],
        attempt: int,
        begin_s: float,
        deadline: Deadline,
        flush_interval_s: float,
        on_step: Callable[[Advance], None],
        rank: int = 0,
        feed: Feed | None = None,
        num_cached: Int32 | None = None,
    ) -> None:
        """`num_cached` [N]: prompt tokens that an engine with its own cache did not compute."""
        self._rank, self._feed, self._num_cached = rank, feed, num_cached
        self._stepped_s = self._expected_s = 0.0
        self._requests, self._batcher, self._cache = requests, batcher, cache
        self._backend, self._generations, self._scores = backend, generations, scores
        self._journal, self._unfinished = journal, unfinished
        self._too_large = too_large
        self._cost, self._twins, self._attempt = cost, twins, attempt
        self._flush_interval_s, self._on_step = flush_interval_s, on_step
        self._deadline = deadline
        self._log = StepLog()
        self._ended: list[Generation] = []
        self._saved_rows = self._output_tokens = 0
        self._begin, self._flushed_at = begin_s, time.monotonic()

    def run(self) -> None:
        """Run to the end; whatever stops it, what was made is saved first."""
        gc.freeze()  # the model and the plan, which the collector would go through again and again
        try:
            self._deadline.check()
            while self._goes_on(self._step()):
                self._deadline.check()
        finally:
            gc.unfreeze()
            self._save_all()
        self._cache.check_integrity(self._batcher.free_pages)

    def _goes_on(self, stepped: bool) -> bool:
        if self._feed is None:
            return stepped
        if not stepped:
            self._flush()  # it may be long until there is more to do
        return self._feed.goes_on(self, not stepped)

    def figures(self) -> RankFigures:
        return figures_of(
            self._batcher.state, self._stepped_s, self._expected_s, self._output_tokens
        )

    def withdraw(self, requests: Int32) -> tuple[Int32, pa.Table]:
        """Give requests back that wait and have not run; those that it gives, and their answers."""
        return self._given(*self._batcher.withdraw(requests))

    def release(self, memory_s: float, room: int) -> tuple[Int32, pa.Table]:
        """Give running requests back, as `Batcher.release`; likewise."""
        return self._given(*self._batcher.release(memory_s, room))

    def _given(self, requests: Int32, freed: Freed) -> tuple[Int32, pa.Table]:
        self._cache.free(freed)
        return requests, begun_table(self._requests, self._generations.take(requests))

    def deposit(self, requests: Int32, answers: pa.Table | None = None) -> None:
        """Take requests on, too; `answers`: what some of them have so far."""
        if answers is not None:
            begun, _ = to_continue(self._requests, requests, self._twins, answers)
            self._generations.forget(answer.request for answer in begun)
            self._generations.resume(begun)
        generated = self._generations.lengths(requests)
        for request in self._batcher.deposit(requests, generated).tolist():
            self.fail(request, self._too_large(request))

    def observe(self, elsewhere: Outputs) -> None:
        """Other ranks have made these outputs, or make them."""
        self._batcher.observe(elsewhere)

    def fail(self, request: int, error: str) -> None:
        """Answer a request that cannot run with an error row."""
        self._note_end(Generation(request, [], None, None, error))
        self._generations.forget([request])

    def _step(self) -> bool:
        begin = time.monotonic()
        before = (self._batcher.preemptions, self._batcher.recomputed_tokens)
        batch = self._batcher.next_batch()
        if batch is None:
            return False
        compute_s, memory_s = self._predict(batch)
        self._cache.begin_step(batch)
        if self._feed is not None and len(batch.new_request):
            self._feed.begins(batch.new_request)
        scheduled = time.monotonic()
        result = self._backend.run(batch)
        computed = time.monotonic()
        ended = self._commit(batch, result)
        end = time.monotonic()
        self._deadline.note_step(end - begin)
        batcher = self._batcher
        counts = result.counts or self._counts(batch, *before)
        self._note_pace(end - begin, compute_s, memory_s, int(batch.num_tokens.sum()))
        self._log.add(
            StepRecord(
                attempt=self._attempt,
                rank=self._rank,
                step=batch.step,
                start_s=begin - self._begin,
                step_s=end - begin,
                prefill_tokens=counts.prefill_tokens,
                decode_tokens=counts.decode_tokens,
                output_tokens=len(result.token_ids),
                running=counts.running,
                running_left=batcher.num_running - batcher.num_right,
                waiting=batcher.num_waiting,
                finished=ended,
                pages_used=counts.pages_used,
                pages_idle=batcher.idle_pages,
                num_pages=self._cache.num_pages,
                preemptions=counts.preemptions,
                recomputed_tokens=counts.recomputed_tokens,
                predicted_compute_s=compute_s,
                predicted_memory_s=memory_s,
                decide_s=batcher.decide_s,
                schedule_s=(scheduled - begin) + (end - computed),
                attention_s=result.attention_s,
                model_s=result.model_s,
                sample_s=result.sample_s,
            )
        )
        if self._unfinished.is_due(end):
            self._save_all()
        elif end - self._flushed_at >= self._flush_interval_s:
            self._flush()
        self._on_step(self._advance(end))
        return True

    def _counts(self, batch: Batch, preemptions: int, recomputed_tokens: int) -> EngineCounts:
        """What `batch` did, and what there was of some things before it."""
        batcher = self._batcher
        return EngineCounts(
            batch.num_prefill_tokens,
            batch.num_decodes,
            batcher.num_running,
            self._cache.num_pages - batcher.free_pages,
            batcher.preemptions - preemptions,
            batcher.recomputed_tokens - recomputed_tokens,
        )

    def _commit(self, batch: Batch, result: StepResult) -> int:
        finished = np.zeros(len(batch.slot), np.bool_)
        drew = np.flatnonzero(batch.needs_logits)
        over, ended = self._generations.add(
            batch.request[drew], result.token_ids, result.bad, result.logprobs, result.errors
        )
        finished[drew] = over
        for generation in ended:
            self._note_end(generation)
        self._generations.forget(generation.request for generation in ended)
        self._output_tokens += len(drew)
        self._cache.free(self._batcher.commit(batch, finished))
        return len(ended)

    def _note_end(self, generation: Generation) -> None:
        request = generation.request
        if generation.error is None:
            generation = replace(
                generation,
                score=self._scores.take_score(request),
                prompt_logprobs=self._scores.take(request),
            )
        self._scores.forget(request)
        self._ended.append(generation)
        for twin in self._twins.get(request, ()):
            self._ended.append(replace(generation, request=int(twin), is_copy=True))

    def _predict(self, batch: Batch) -> tuple[float, float]:
        """Compute and KV-read seconds that the cost model gives this step."""
        n = batch.num_decodes
        end = batch.start + batch.num_tokens
        compute_s = self._cost.prefill_s(batch.start[n:], end[n:]).sum()
        compute_s += self._cost.head_s(int(batch.needs_logits.sum()))
        # a decode's attention arithmetic counts as memory time
        compute_s += n * self._cost.prefill_s(0, 1)
        spared = self._cost.spared_frac * self._batcher.spared_tokens
        read_tokens = end[:n].sum(dtype=np.int64) - spared
        return float(compute_s), float(read_tokens * self._cost.context_s)

    def _note_pace(self, step_s: float, compute_s: float, memory_s: float, num_tokens: int) -> None:
        weight_s = self._cost.step_weight_read_s(num_tokens)
        busy_s = self._cost.with_weight_floor(compute_s, weight_s)
        expected_s = float(self._cost.overlapped_s(busy_s, memory_s))
        self._stepped_s += step_s
        self._expected_s += expected_s

    def _save_all(self) -> None:
        self._flush()  # first: what has ended is in the other file no more
        self._unfinished.save()

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if self._ended:
            request = np.array([g.request for g in self._ended], np.int32)
            prompt_len = self._requests.prompt_len[request]
            is_copy = np.array([g.is_copy for g in self._ended], np.bool_)
            known = self._batcher.num_cached if self._num_cached is None else self._num_cached
            cached = np.where(is_copy, prompt_len, np.maximum(known[request], 0))
            table = answers_table(
                row=self._requests.row[request],
                output_index=self._requests.sample[request],
                output_text=[g.text for g in self._ended],
                output_reasoning=[g.reasoning for g in self._ended],
                output_token_ids=[g.token_ids for g in self._ended],
                finish_reason=[g.finish_reason for g in self._ended],
                num_prompt_tokens=prompt_len,
                num_cached_tokens=cached,
                error=[g.error for g in self._ended],
                stop_reason=[g.stop_reason for g in self._ended],
                output_logprobs=[g.logprobs for g in self._ended],
                prompt_logprobs=[g.prompt_logprobs for g in self._ended],
                score=[g.score for g in self._ended],
            )
            self._journal.append(table)
            if self._feed is not None:
                self._feed.saved(request)
            self._saved_rows += len(self._ended)
            self._ended = []
        self._journal.append_steps(self._log.take())

    def _advance(self, now: float) -> Advance:
        return Advance(
            saved_rows=self._saved_rows,
            running=self._batcher.num_running,
            waiting=self._batcher.num_waiting,
            output_tokens=self._output_tokens,
            elapsed_s=now - self._begin,
        )
