"""Steps one after the other: decided, launched, taken, committed.

Where a launcher's steps take their time, the next one is launched before the tokens of the last
are there:

    CPU     decide 2 · launch 2 · take 1 · commit 2 · decide 3 · launch 3 · take 2 · commit 3
    device  ─── 1 ─────────────┤─── 2 ────────────────────────────────┤─── 3 ───────────────

Step 2 goes by all that step 1 is known to bring: an answer ends where it has as many tokens as it
may have. One that ended otherwise is noticed a step late; what step 2 drew for it is dropped. A
step is taken before the next is decided where that asks for its tokens, or would send one of its
requests back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from blendrun.engine.deadline import Deadline
from blendrun.engine.ended_answers import EndedAnswers
from blendrun.engine.generations import Generations
from blendrun.engine.launcher import InFlight, Launcher
from blendrun.engine.requests import EngineRequests
from blendrun.engine.step_book import Entry, StepBook, counts_of
from blendrun.engine.step_result import StepResult
from blendrun.schedule.batch import Batch, Freed
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.state import Bools
from blendrun.tree.prefix_tree import Int32


class Cache(Protocol):
    """Where K and V lie: `PrefixCache`, or what stands for an engine's own."""

    @property
    def num_pages(self) -> int: ...

    def begin_step(self, batch: Batch) -> None: ...

    def free(self, freed: Freed) -> None:
        """These have ended, or are not needed any more."""

    def check_integrity(self, free_pages: int) -> None:
        """At the end. Raises BackendError where it holds anything else than the batcher says."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A step from its launch until it is noted. Masks [S] are by entry of its batch."""

    batch: Batch
    step: InFlight
    dropped: Bools  # its request had ended before: what was drawn is nobody's
    finished: Bools = field(init=False)  # committed as ended
    over: Bools = field(init=False)  # ended, once the tokens are taken
    entry: Entry = field(init=False)
    result: StepResult | None = None  # of what is not dropped
    num_ended: int = 0
    seen_s: float | None = None  # when it was seen to be over

    @property
    def late(self) -> Bools:
        """Ended, and committed as going on."""
        return self.over & ~self.finished


class Steps:
    def __init__(
        self,
        requests: EngineRequests,
        batcher: Batcher,
        cache: Cache,
        launcher: Launcher[Any],
        generations: Generations,
        answers: EndedAnswers,
        book: StepBook,
        deadline: Deadline,
        on_new: Callable[[Int32], None],
    ) -> None:
        """`on_new`: these requests are computed next, for the first time or again."""
        self._requests, self._batcher, self._cache = requests, batcher, cache
        self._launcher, self._generations, self._answers = launcher, generations, answers
        self._book, self._deadline, self._on_new = book, deadline, on_new
        self._flight: _Flight | None = None
        self.output_tokens = 0

    @property
    def num_in_flight(self) -> int:
        """Steps whose tokens were not taken yet."""
        return int(self._flight is not None)

    def step(self) -> bool:
        """Launch the next step. False: there is none, and none is in flight."""
        if self._flight is not None and self._batcher.lacks_pages:
            self.land()
        batcher, begin_s = self._batcher, time.monotonic()
        counted = (batcher.preemptions, batcher.recomputed_tokens)
        batch = batcher.next_batch()
        if batch is None:
            self.land()
            return False
        predicted = self._book.predict(batch, batcher.spared_tokens)
        flight = self._launched(batch)
        before, self._flight = self._flight, flight
        if before is not None:
            self._take(before)
            flight.dropped = np.isin(batch.request, before.batch.request[before.late])
        if self._launcher.needs_tokens(batch):
            self._take(flight)
            flight.finished = flight.over
        else:
            flight.finished = self._reaches_limit(batch) & ~flight.dropped
        self._cache.free(batcher.commit(batch, flight.finished))
        if before is not None:
            self._end_late(before)
            self._note(before)
        flight.entry = Entry(
            batch,
            begin_s,
            predicted,
            batcher.decide_s,
            counts_of(batch, batcher, self._cache.num_pages, counted),
            batcher.num_running - batcher.num_right,
            batcher.num_waiting,
            batcher.idle_pages,
        )
        if flight.step.is_there():  # the commit after a step in turn is part of it, too
            flight.seen_s = time.monotonic()
        if flight.result is not None:
            self._note(flight)
            self._flight = None
        return True

    def land(self) -> None:
        """Wait for the step in flight, if there is one, and take its tokens."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._take(flight)
            self._end_late(flight)
            self._note(flight)

    def _launched(self, batch: Batch) -> _Flight:
        self._cache.begin_step(batch)
        if len(batch.new_request):
            self._on_new(batch.new_request)
        before = None if self._flight is None else self._flight.step
        step = self._launcher.launch(batch, before)
        return _Flight(batch, step, np.zeros(len(batch.slot), np.bool_))

    def _reaches_limit(self, batch: Batch) -> Bools:
        """Entries [S] whose answers are as long as they may be with what the step draws."""
        known = batch.start + batch.num_tokens - self._requests.prompt_len[batch.request]
        reaches: Bools = known + 1 >= self._requests.max_tokens[batch.request]
        return batch.needs_logits & reaches

    def _take(self, flight: _Flight) -> None:
        result = flight.step.result()
        if flight.seen_s is None:
            flight.seen_s = time.monotonic()
        drew = np.flatnonzero(flight.batch.needs_logits)
        kept = ~flight.dropped[drew]
        if not kept.all():
            drew, result = drew[kept], result.of_rows(kept)
        over, ended = self._generations.add(
            flight.batch.request[drew],
            result.token_ids,
            result.bad,
            result.logprobs,
            result.errors,
        )
        flight.over = np.zeros(len(flight.batch.slot), np.bool_)
        flight.over[drew] = over
        for generation in ended:
            self._answers.add(generation)
        self._generations.forget(generation.request for generation in ended)
        self.output_tokens += len(drew)
        flight.result, flight.num_ended = result, len(ended)

    def _end_late(self, flight: _Flight) -> None:
        late = flight.late
        if late.any():
            lengths = self._generations.lengths(flight.batch.request[late])
            self._cache.free(self._batcher.end(flight.batch.slot[late], lengths))

    def _note(self, flight: _Flight) -> None:
        result, seen_s = flight.result, flight.seen_s
        assert result is not None
        assert seen_s is not None
        num_tokens = len(result.token_ids)
        step_s = self._book.add(flight.entry, result, num_tokens, flight.num_ended, seen_s)
        self._deadline.note_step(step_s)
