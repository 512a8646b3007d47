"""The run loop: step after step, until every request has its answer.

Finished requests go to the journal as soon as `flush_interval_s` has passed, in the order in which
they end. What unfinished ones have is saved less often, and whenever the run stops: a killed run
loses what came after that and nothing else.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from blendrun.cost.cost_model import CostModel
from blendrun.data.results import RankJournal, ResultJournal
from blendrun.engine.begun import begun_table, to_continue
from blendrun.engine.deadline import Deadline
from blendrun.engine.ended_answers import EndedAnswers, Scores
from blendrun.engine.figures_of import figures_of
from blendrun.engine.generations import Generation, Generations
from blendrun.engine.launcher import Backend, InTurn, Launcher
from blendrun.engine.rank_figures import RankFigures
from blendrun.engine.requests import EngineRequests
from blendrun.engine.step_book import StepBook
from blendrun.engine.steps import Cache, Steps
from blendrun.engine.unfinished import Unfinished
from blendrun.errors import TimeLimitError
from blendrun.schedule.batch import Freed
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32


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
        ahead: Launcher[Any] | None = None,
    ) -> None:
        """
        Args:
            num_cached: [N] prompt tokens that an engine with its own cache did not compute.
            ahead: launches a step before the tokens of the last are there; None: `backend` runs
                one after the other.
        """
        self._feed, self._num_cached = feed, num_cached
        self._requests, self._batcher, self._cache = requests, batcher, cache
        self._generations, self._journal, self._unfinished = generations, journal, unfinished
        self._too_large, self._twins = too_large, twins
        self._flush_interval_s, self._on_step = flush_interval_s, on_step
        self._deadline = deadline
        self._begin, self._flushed_at = begin_s, time.monotonic()
        self._answers = EndedAnswers(requests, scores, twins, journal)
        self._book = StepBook(cost, cache.num_pages, attempt, rank, begin_s)
        self._steps = Steps(
            requests,
            batcher,
            cache,
            ahead or InTurn(backend),
            generations,
            self._answers,
            self._book,
            deadline,
            _nobody_hears if feed is None else feed.begins,
        )

    def run(self) -> None:
        """Run to the end; whatever stops it, what was made is saved first.

        An interrupt or an error leaves a step in flight behind; its tokens are made again.
        """
        gc.freeze()  # the model and the plan, which the collector would go through again and again
        try:
            self._deadline.check()
            while self._goes_on(self._step()):
                self._deadline.check(self._steps.num_in_flight + 1)
            self._steps.land()
        except TimeLimitError:
            self._steps.land()  # there is time for what runs
            raise
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
        book, output_tokens = self._book, self._steps.output_tokens
        return figures_of(self._batcher.state, book.stepped_s, book.expected_s, output_tokens)

    def withdraw(self, requests: Int32) -> tuple[Int32, pa.Table]:
        """Give requests back that wait and have not run; those that it gives, and their answers."""
        return self._given(*self._batcher.withdraw(requests))

    def release(self, memory_s: float, room: int) -> tuple[Int32, pa.Table]:
        """Give running requests back, as `Batcher.release`; likewise."""
        self._steps.land()  # they go with all tokens that were drawn for them
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
        self._answers.add(Generation(request, [], None, None, error))
        self._generations.forget([request])

    def _step(self) -> bool:
        if not self._steps.step():
            return False
        now = time.monotonic()
        if self._unfinished.is_due(now):
            self._save_all()
        elif now - self._flushed_at >= self._flush_interval_s:
            self._flush()
        self._on_step(self._advance(now))
        return True

    def _save_all(self) -> None:
        self._flush()  # first: what has ended is in the other file no more
        self._unfinished.save()

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        known = self._batcher.num_cached if self._num_cached is None else self._num_cached
        saved = self._answers.save(known)
        if self._feed is not None and len(saved):
            self._feed.saved(saved)
        self._journal.append_steps(self._book.log.take())

    def _advance(self, now: float) -> Advance:
        return Advance(
            saved_rows=self._answers.num_saved,
            running=self._batcher.num_running,
            waiting=self._batcher.num_waiting,
            output_tokens=self._steps.output_tokens,
            elapsed_s=now - self._begin,
        )


def _nobody_hears(requests: Int32) -> None:
    del requests
