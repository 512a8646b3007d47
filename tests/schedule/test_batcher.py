"""The batcher against a KV cache that only counts pages."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.errors import BackendError
from blendrun.schedule.admission import AdmissionQueue, QueueColumns
from blendrun.schedule.batch import Batch, Match
from blendrun.schedule.batcher import Batcher, BatchLimits


@dataclass
class CountingCache:
    """Pages per running request, nothing shared; counts pages as promised once admitted."""

    num_pages: int
    page_size: int = 4
    held: dict[int, int] = field(default_factory=dict)  # pages by slot
    promised: dict[int, int] = field(default_factory=dict)
    filling: set[int] = field(default_factory=set)  # requests whose prefix another one computes

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def available_pages(self) -> int:
        unkept = sum(max(p - self.held[s], 0) for s, p in self.promised.items())
        return self.num_pages - sum(self.held.values()) - unkept

    def match(self, request: int, _known_len: int) -> Match:
        return Match(0, request in self.filling)

    def pages_for(self, _request: int, _cached_len: int, known_len: int) -> int:
        return self._pages(known_len + 1)

    admission_pages = pages_for

    def acquire(self, slot: int, _request: int, known_len: int) -> int:
        assert slot not in self.held
        self.held[slot], self.promised[slot] = 0, self._pages(known_len + 1)
        return 0

    def begin_step(self) -> None:
        pass

    def _grow(self, slot: int, tokens: int) -> None:
        self.held[slot] = max(self.held[slot], self._pages(tokens))
        assert sum(self.held.values()) <= self.num_pages

    def extend(self, slot: int, _start: int, end: int, _token_base: int) -> None:
        self._grow(slot, end)

    def extend_decodes(self, slots: np.ndarray, positions: np.ndarray) -> None:
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
            self._grow(slot, position + 1)
            self.promised[slot] = 0

    def decode_pages(self, slots: np.ndarray, positions: np.ndarray) -> int:
        return sum(
            max(self._pages(position + 1) - max(self.held[slot], self.promised[slot]), 0)
            for slot, position in zip(slots.tolist(), positions.tolist(), strict=True)
        )

    def release(self, slot: int, _finished: bool) -> None:
        del self.held[slot], self.promised[slot]


@dataclass
class Run:
    prompt_len: list[int]
    output_len: list[int]
    num_pages: int = 1000
    chunk_size: int = 8
    max_seqs: int = 4
    two_ended: bool = False

    def __post_init__(self) -> None:
        n = len(self.prompt_len)
        self.cache = CountingCache(self.num_pages)
        columns = QueueColumns(np.linspace(3, 0.1, n), np.ones(n))
        queue = AdmissionQueue(np.arange(n, dtype=np.int32), columns, 1.0, 10**6, self.two_ended)
        self.batcher = Batcher(
            queue,
            self.cache,
            np.array(self.prompt_len),
            BatchLimits(self.chunk_size, self.max_seqs),
        )
        self.generated = [0] * n

    def step(self) -> Batch | None:
        batch = self.batcher.next_batch()
        if batch is None:
            return None
        self.check(batch)
        finished = np.zeros(len(batch.slot), np.bool_)
        for i in np.flatnonzero(batch.needs_logits):
            request = int(batch.request[i])
            self.generated[request] += 1
            finished[i] = self.generated[request] == self.output_len[request]
        self.batcher.commit(batch, finished)
        return batch

    def check(self, batch: Batch) -> None:
        n = batch.num_decodes
        assert len(batch.slot) > 0
        assert len(set(batch.slot)) == len(batch.slot) <= self.max_seqs
        assert len(set(batch.request)) == len(batch.request)
        assert self.batcher.num_running <= self.max_seqs
        assert (batch.num_tokens[:n] == 1).all()
        assert batch.needs_logits[:n].all()
        assert (batch.num_tokens > 0).all()
        assert batch.num_prefill_tokens <= self.chunk_size
        known = [self.prompt_len[r] + self.generated[r] for r in batch.request]
        assert (batch.start + batch.num_tokens <= known).all()
        assert (batch.needs_logits == (batch.start + batch.num_tokens == known)).all()
        assert (np.array(known)[:n] == batch.start[:n] + 1).all()

    def finish(self) -> list[Batch]:
        batches = []
        while (batch := self.step()) is not None:
            batches.append(batch)
            assert len(batches) < 10_000
        return batches


@st.composite
def runs(draw: st.DrawFn) -> Run:
    n = draw(st.integers(1, 12))
    lengths = st.lists(st.integers(1, 20), min_size=n, max_size=n)
    prompts, outputs = draw(lengths), draw(lengths)
    alone = max(-(-(p + d + 1) // 4) for p, d in zip(prompts, outputs, strict=True))
    return Run(
        prompts,
        outputs,
        num_pages=alone + draw(st.integers(0, 12)),
        chunk_size=draw(st.integers(1, 30)),
        max_seqs=draw(st.integers(1, 6)),
        two_ended=draw(st.booleans()),
    )


@given(runs())
def test_every_request_gets_its_tokens_within_the_limits(run: Run):
    run.finish()
    assert run.generated == run.output_len
    assert run.cache.held == {}
    assert run.batcher.num_running == run.batcher.num_waiting == 0


def test_steps_decode_first_then_go_on_with_begun_prompts_then_admit():
    run = Run([3, 20, 4], [9, 2, 2], chunk_size=8)
    first = run.step()
    assert first.request.tolist() == [0, 1]  # the second prompt takes what is left of the chunk
    assert first.num_tokens.tolist() == [3, 5]
    assert first.needs_logits.tolist() == [True, False]
    second = run.step()
    assert (second.num_decodes, second.request.tolist()) == (1, [0, 1])
    assert second.num_tokens.tolist() == [1, 8]
    third = run.step()
    assert third.num_tokens.tolist() == [1, 7, 1]  # the prompt ends, the next begins
    assert third.needs_logits.tolist() == [True, True, False]
    fourth = run.step()
    assert fourth.num_decodes == 2
    assert fourth.request.tolist() == [0, 1, 2]


def test_never_more_than_max_seqs_run():
    run = Run([1] * 20, [3] * 20, chunk_size=100, max_seqs=3)
    assert max(len(batch.slot) for batch in run.finish()) == 3


def test_a_request_whose_prefix_is_being_computed_waits():
    run = Run([3, 3], [5, 1])
    run.cache.filling = {1}
    assert run.step().request.tolist() == [0]
    run.cache.filling = set()
    assert run.step().request.tolist() == [0, 1]


def test_the_youngest_request_of_the_right_is_preempted_and_comes_back():
    # left takes 0 and 1, right 3 and 2; decoding fills 8 pages after a few steps
    run = Run([4] * 4, [12] * 4, num_pages=9, chunk_size=100, two_ended=True)
    first = run.step()
    assert sorted(first.request.tolist()) == [0, 1, 2, 3]
    order = first.request.tolist()
    youngest_right = max((2, 3), key=order.index)
    while not run.batcher.counts.preemptions:
        batch = run.step()
    assert set(range(4)) - set(batch.request.tolist()) == {youngest_right}
    assert run.batcher.counts.recomputed_tokens == 0
    run.finish()
    assert run.generated == [12] * 4
    assert run.batcher.counts.recomputed_tokens > 0


def test_without_a_right_side_the_youngest_is_preempted():
    run = Run([4] * 3, [12] * 3, num_pages=7, chunk_size=100)
    run.step()
    while not run.batcher.counts.preemptions:
        batch = run.step()
    assert batch.request.tolist() == [0, 1]


def test_a_preempted_request_computes_its_own_answer_again_as_a_prompt():
    run = Run([4] * 3, [12] * 3, num_pages=7, chunk_size=100)
    while not run.batcher.counts.recomputed_tokens:
        batch = run.step()
    begun_again = (batch.start == 0) & (batch.num_tokens > 4)
    assert begun_again[batch.num_decodes :].any()


def test_side_counts_tell_who_runs_from_where():
    run = Run([1] * 6, [5] * 6, chunk_size=100, max_seqs=4, two_ended=True)
    run.step()
    assert run.batcher.side_counts() == (1, 3)  # as the parts of memory: 31 % and 69 %
    assert run.batcher.num_waiting == 2


def test_no_progress_is_an_error_with_the_numbers():
    run = Run([100], [1], num_pages=2)
    with pytest.raises(BackendError, match="0 running, 1 waiting, 2 of 2 KV pages"):
        run.step()


def test_one_request_that_outgrows_memory_is_an_error():
    run = Run([4], [100], num_pages=3)
    with pytest.raises(BackendError, match="one request alone"):
        run.finish()


def test_an_empty_queue_ends_at_once():
    assert Run([], []).step() is None
