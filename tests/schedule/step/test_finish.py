"""Requests whose end is noticed a step late: what is left is as if it had been noticed in time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.schedule.batch import Batch
from blendrun.schedule.step.begin import ADMISSION, BUDGET
from tiny_jobs import prompt_lists
from tiny_steps import TinyRun, distinct


class LateRun:
    """Knows in time only of ends at `max_output`; a step later, of all others.

    Sees to it that no request is sent back whose last token it does not know.
    """

    def __init__(self, run: TinyRun) -> None:
        self.run, self.wasted = run, 0
        self._unseen: list[tuple[int, int]] = []  # slots and requests that have ended meanwhile

    def step(self) -> Batch | None:
        run, batcher = self.run, self.run.batcher
        if batcher.lacks_pages:
            self._see()
        num_preemptions = batcher.preemptions
        batch = batcher.next_batch()
        if batch is None:
            return None
        assert not self._unseen or batcher.preemptions == num_preemptions
        over = {request for _, request in self._unseen}
        self.wasted += len(over & set(batch.request.tolist()))
        finished = np.zeros(len(batch.slot), np.bool_)
        ended = []
        for i in np.flatnonzero(batch.needs_logits).tolist():
            request = int(batch.request[i])
            if request in over:
                continue
            run.generated[request] += 1
            if run.generated[request] == run.output_len[request]:
                finished[i] = run.output_len[request] == run.max_output[request]
                if not finished[i]:
                    ended.append((int(batch.slot[i]), request))
        batcher.commit(batch, finished)
        self._see()
        self._unseen = ended
        return batch

    def _see(self) -> None:
        if self._unseen:
            slots, requests = np.array(self._unseen, np.int32).T
            lengths = np.array(self.run.output_len, np.int32)[requests]
            freed = self.run.batcher.end(np.ascontiguousarray(slots), lengths)
            assert freed.slots.tolist() == slots.tolist()
        self._unseen = []

    def finish(self) -> None:
        while self.step() is not None:
            pass
        self._see()


@st.composite
def runs(draw: st.DrawFn) -> TinyRun:
    prompts = draw(prompt_lists(max_size=10))
    outputs = [draw(st.integers(1, 14)) for _ in prompts]
    most = [d + draw(st.integers(0, 4)) for d in outputs]
    page_size = draw(st.sampled_from([1, 3, 4]))
    alone = max(len(p) + d + 1 for p, d in zip(prompts, most, strict=True))
    return TinyRun(
        prompts,
        outputs,
        num_pages=-(-alone // page_size) + 12 + draw(st.integers(0, 8)),
        page_size=page_size,
        chunk_size=draw(st.integers(2, 30)),
        max_seqs=draw(st.integers(1, 6)),
        admission=draw(st.sampled_from(sorted(ADMISSION))),
        budget=draw(st.sampled_from(sorted(BUDGET))),
        believed=[1] * len(prompts) if draw(st.booleans()) else None,
        max_output=most,
        learns=draw(st.booleans()),
        share=draw(st.booleans()),
    )


def test_an_early_end_costs_one_token():
    run = TinyRun(distinct([4, 4, 4]), [3, 5, 2], max_output=[9, 5, 9], chunk_size=100)
    late = LateRun(run)
    late.finish()
    assert late.wasted == 2  # that of the second is known


def test_the_lengths_learned_are_the_true_ones():
    lengths = [3, 5, 2, 5, 7, 1]
    how = {"max_output": [20] * 6, "chunk_size": 100, "learns": True, "max_seqs": 8}
    in_time = TinyRun(distinct([4] * 6), lengths, **how)
    in_time.finish()
    run = TinyRun(distinct([4] * 6), lengths, **how)
    LateRun(run).finish()
    mine, theirs = (one.batcher.state.lengths for one in (run, in_time))
    assert mine.events.tolist() == theirs.events.tolist()
    assert mine.strata["finished"].tolist() == theirs.strata["finished"].tolist()


def test_pages_are_said_to_lack_when_the_next_step_sends_someone_back():
    # believed to end at once, so all come in
    run = TinyRun(distinct([4] * 3), [12] * 3, num_pages=7, chunk_size=100, believed=[1] * 3)
    said = []
    while True:
        before = run.batcher.preemptions
        lacks = run.batcher.lacks_pages
        if run.step() is None:
            break
        said.append(lacks)
        assert lacks == (run.batcher.preemptions > before)
    assert any(said)
    assert not all(said)


@settings(max_examples=150, deadline=None)
@given(runs())
def test_every_request_gets_its_tokens_and_all_pages_come_back(run: TinyRun):
    if len(run.batcher.too_large):
        return
    late = LateRun(run)
    late.finish()
    early = [n < most for n, most in zip(run.output_len, run.max_output, strict=True)]
    assert run.generated == list(run.output_len)
    assert late.wasted <= sum(early)
    batcher = run.batcher
    assert batcher.num_running == batcher.num_waiting == 0
    assert batcher.free_pages == run.num_pages
    counts = batcher.state.counts
    assert counts["rest_decodes"] == pytest.approx(0, abs=1e-6)
    assert counts["rest_context"] == pytest.approx(0, abs=1e-6)
    assert counts["spared"] == counts["num_decoding"] == counts["context"] == 0
