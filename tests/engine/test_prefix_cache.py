"""The cache and the batcher together, against a KV memory that remembers whose token lies where."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.engine.prefix_cache import PrefixCache
from blendrun.errors import BackendError
from blendrun.schedule.batch import Batch
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.begin import ADMISSION, BatchLimits, Steering
from blendrun.tree.build import build_tree
from tiny_jobs import flat
from tiny_steps import PRICES, batcher_job


@dataclass
class Job:
    prompts: list[list[int]]
    output_len: list[int]
    num_pages: int
    page_size: int = 4
    chunk_size: int = 8
    max_seqs: int = 4
    admission: str = "two-ended"
    share: bool = True
    believed: list[int] | None = None


class FakeMemory:
    """Runs a job; each KV slot holds the text that its token ends, generated tokens included."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tree = build_tree(*flat(job.prompts))
        self.texts = [list(p) for p in job.prompts]
        self.generated = [0] * len(job.prompts)
        max_len = max(len(p) + d for p, d in zip(job.prompts, job.output_len, strict=True))
        self.cache = PrefixCache(
            self.tree,
            num_pages=job.num_pages,
            page_size=job.page_size,
            max_seqs=job.max_seqs,
            max_len=max_len,
            share=job.share,
        )
        self.batcher = Batcher(
            batcher_job(self.tree, job.output_len, believed=job.believed),
            BatchLimits(job.num_pages, job.page_size, job.chunk_size, job.max_seqs),
            PRICES,
            Steering(job.admission),
            job.share,
        )
        assert not len(self.batcher.too_large)
        self.memory: dict[int, tuple[int, ...]] = {}
        self.computed_prompt_tokens = 0

    def run(self) -> None:
        for _ in range(10_000):
            batch = self.batcher.next_batch()
            if batch is None:
                return
            self.cache.begin_step(batch)
            self._apply(batch)
            self._check_reads(batch)
            finished = np.zeros(len(batch.slot), bool)
            for i in np.flatnonzero(batch.needs_logits):
                request = int(batch.request[i])
                self.generated[request] += 1
                finished[i] = self.generated[request] == self.job.output_len[request]
                self.texts[request].append(-1 - request)
            self.cache.free(self.batcher.commit(batch, finished))
            self.cache.check_integrity(self.batcher.free_pages)
        pytest.fail("the job does not end")

    def _apply(self, batch: Batch) -> None:
        writes = self.cache.take_writes()
        size = self.job.page_size
        old = dict(self.memory)
        for source, target in zip(writes.copy_from, writes.copy_to, strict=True):
            for offset in range(size):  # all copies read what was there before the step
                self.memory[target * size + offset] = old.get(source * size + offset, ())
        tokens = []
        for request, start, count in zip(batch.request, batch.start, batch.num_tokens, strict=True):
            tokens += [tuple(self.texts[request][: p + 1]) for p in range(start, start + count)]
            self.computed_prompt_tokens += max(
                min(start + count, len(self.job.prompts[request])) - start, 0
            )
        assert set(writes.token_idx) == set(range(len(tokens)))
        for token, slot in zip(writes.token_idx, writes.slot, strict=True):
            self.memory[int(slot)] = tokens[token]

    def _check_reads(self, batch: Batch) -> None:
        size = self.job.page_size
        for slot, request, start, count in zip(
            batch.slot, batch.request, batch.start, batch.num_tokens, strict=True
        ):
            for position in range(start + count):
                page = int(self.cache.page_table[slot, position // size])
                assert self.memory[page * size + position % size] == tuple(
                    self.texts[request][: position + 1]
                ), f"request {request}, position {position}"


def jobs(tight: bool) -> st.SearchStrategy[Job]:
    prompt = st.lists(st.integers(0, 1), min_size=1, max_size=14)

    @st.composite
    def build(draw: st.DrawFn) -> Job:
        prompts = draw(st.lists(prompt, min_size=1, max_size=12))
        output_len = [draw(st.integers(1, 12)) for _ in prompts]
        page_size = draw(st.sampled_from([1, 3, 4, 8]))
        # one page per node of the deepest path covers the copied boundaries
        alone = max(len(p) + d for p, d in zip(prompts, output_len, strict=True))
        least = -(-alone // page_size) + 16
        return Job(
            prompts,
            output_len,
            num_pages=least if tight else 4000,
            page_size=page_size,
            chunk_size=draw(st.integers(1, 20)),
            max_seqs=draw(st.integers(1, 12)),
            admission=draw(st.sampled_from(sorted(ADMISSION))),
            believed=[1] * len(prompts) if tight and draw(st.booleans()) else None,
            share=draw(st.booleans()) if tight else True,
        )

    return build()


@settings(max_examples=300, deadline=None)
@given(jobs(tight=True))
def test_every_read_finds_its_own_tokens_when_pages_are_short(job: Job) -> None:
    memory = FakeMemory(job)
    memory.run()
    assert memory.generated == job.output_len
    assert memory.batcher.free_pages == job.num_pages


@settings(max_examples=300, deadline=None)
@given(jobs(tight=False))
def test_shared_tokens_are_computed_exactly_once_when_pages_suffice(job: Job) -> None:
    memory = FakeMemory(job)
    memory.run()
    # a prompt that ends inside or at the end of another recomputes its last token at most
    ends_inside = int((memory.tree.edge_len[memory.tree.leaf_node] == 0).sum())
    unique = memory.tree.num_unique_tokens
    assert unique <= memory.computed_prompt_tokens <= unique + ends_inside
    assert memory.batcher.preemptions == 0


def test_preemption_happens_and_loses_nothing() -> None:
    job = Job(
        [[i, 1, 2, 3] for i in range(6)],
        [40] * 6,
        num_pages=30,
        max_seqs=6,
        admission="one list",
        believed=[1] * 6,
    )
    memory = FakeMemory(job)
    memory.run()
    assert memory.batcher.preemptions > 0
    assert memory.generated == [40] * 6


def test_a_prompt_that_is_cached_whole_computes_one_token() -> None:
    memory = FakeMemory(Job([[1, 2, 3, 4, 5]] * 3, [1, 1, 1], num_pages=50, chunk_size=100))
    memory.run()
    assert memory.computed_prompt_tokens == 5 + 2
    assert sorted(memory.batcher.num_cached) == [0, 4, 4]


def test_a_page_that_the_batcher_counts_otherwise_is_found() -> None:
    memory = FakeMemory(Job([[1, 2, 3]], [2], num_pages=9))
    memory.run()
    with pytest.raises(BackendError, match=r"9 free .* the batcher counts 8 free"):
        memory.cache.check_integrity(8)
