"""The batcher on its own: every request gets its tokens, within the limits, in every policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.errors import BackendError
from blendrun.schedule.batch import Batch
from blendrun.schedule.step.begin import ADMISSION, BUDGET
from tiny_jobs import prompt_lists
from tiny_steps import TinyRun, distinct


def check(run: TinyRun, batch: Batch, generated: list[int]) -> None:
    n = batch.num_decodes
    assert len(batch.slot) > 0
    assert len(set(batch.slot)) == len(batch.slot) <= run.max_seqs
    assert len(set(batch.request)) == len(batch.request)
    assert (batch.num_tokens[:n] == 1).all()
    assert batch.needs_logits[:n].all()
    assert (batch.num_tokens > 0).all()
    assert batch.num_prefill_tokens <= run.chunk_size
    known = np.array([len(run.prompts[r]) + generated[r] for r in batch.request])
    assert (batch.start + batch.num_tokens <= known).all()
    assert (batch.needs_logits == (batch.start + batch.num_tokens == known)).all()
    assert (known[:n] == batch.start[:n] + 1).all()


def spared_tokens(run: TinyRun, batch: Batch) -> int:
    """Tokens on the decodes' paths, above their leaves, that the path of another has, too."""
    tree, seen, spared = run.tree, set(), 0
    for request in batch.request[: batch.num_decodes]:
        node = int(tree.parent[tree.leaf_node[request]])
        while node != 0:
            spared += int(tree.edge_len[node]) if node in seen else 0
            seen.add(node)
            node = int(tree.parent[node])
    return spared


@st.composite
def runs(draw: st.DrawFn) -> TinyRun:
    prompts = draw(prompt_lists(max_size=12))
    outputs = [draw(st.integers(1, 20)) for _ in prompts]
    page_size = draw(st.sampled_from([1, 3, 4]))
    alone = max(len(p) + d + 1 for p, d in zip(prompts, outputs, strict=True))
    learns = draw(st.booleans())
    return TinyRun(
        prompts,
        outputs,
        num_pages=-(-alone // page_size) + 14 + draw(st.integers(0, 12)),
        page_size=page_size,
        chunk_size=draw(st.integers(1, 30)),
        max_seqs=draw(st.integers(1, 6)),
        admission=draw(st.sampled_from(sorted(ADMISSION))),
        budget=draw(st.sampled_from(sorted(BUDGET))),
        believed=[draw(st.integers(1, 60)) for _ in prompts] if draw(st.booleans()) else None,
        max_output=[d + draw(st.integers(0, 4)) for d in outputs],
        learns=learns,
        share=draw(st.booleans()),
        whole_pages=draw(st.booleans()),
        tile=draw(st.sampled_from([1, 4])),
        begun=[draw(st.integers(0, d - 1)) for d in outputs] if draw(st.booleans()) else None,
    )


@settings(max_examples=300, deadline=None)
@given(runs())
def test_every_request_gets_its_tokens_within_the_limits(run: TinyRun):
    if len(run.batcher.too_large):
        return
    while True:
        generated = list(run.generated)
        batch = run.step()
        if batch is None:
            break
        check(run, batch, generated)
    assert run.generated == list(run.output_len)
    assert run.batcher.num_running == run.batcher.num_waiting == 0
    assert run.batcher.free_pages == run.num_pages
    counts = run.batcher.state.counts
    assert counts["rest_decodes"] == pytest.approx(0, abs=1e-6)
    assert counts["rest_context"] == pytest.approx(0, abs=1e-6)
    assert counts["prefill_s"] < 1e-6


@settings(max_examples=100, deadline=None)
@given(runs(), st.sampled_from([0.0, 4e-6, 1e-5]))
def test_each_shared_prefix_is_read_by_one_decode_of_a_step(run: TinyRun, spared_s: float):
    run = replace(run, share=True, spared_s=spared_s, believed=None, learns=False)
    if len(run.batcher.too_large):
        return
    while (batch := run.step()) is not None:
        assert run.spared_tokens == spared_tokens(run, batch)
    counts = run.batcher.state.counts
    assert counts["spared"] == 0
    assert counts["rest_context"] == pytest.approx(0, abs=1e-6)


def test_steps_decode_first_then_go_on_with_begun_prompts_then_admit():
    run = TinyRun(distinct([3, 20, 4]), [9, 2, 2], chunk_size=8)
    first = run.step()
    assert first.request.tolist() == [0, 1]  # the second prompt takes what is left of the chunk
    assert first.num_tokens.tolist() == [3, 5]
    assert first.needs_logits.tolist() == [True, False]
    second = run.step()
    assert (second.num_decodes, second.request.tolist()) == (1, [0, 1])
    assert second.num_tokens.tolist() == [1, 7]  # decodes count in the fixed budget
    third = run.step()
    assert third.num_tokens.tolist() == [1, 7]
    fourth = run.step()
    assert fourth.num_tokens.tolist() == [1, 1, 4]  # the prompt ends, the next begins


def test_never_more_than_max_seqs_run():
    run = TinyRun(distinct([1] * 20), [3] * 20, chunk_size=100, max_seqs=3)
    assert max(len(batch.slot) for batch in run.finish()) == 3


def test_a_request_whose_prefix_is_being_computed_waits():
    prompts = [[*range(20), 90], [*range(20), 91]]
    run = TinyRun(prompts, [5, 5], chunk_size=8)
    assert [run.step().request.tolist() for _ in range(3)] == [[0], [0], [0, 1]]


def test_a_prefix_is_computed_once_also_below_one_too_short_for_a_page():
    sharers = [[7, 7, *range(6), 90], [7, 7, *range(6), 91]]  # of the right, which come in at once
    prompts = [[7, 7, 60], *distinct([1] * 6), *sharers]
    run = TinyRun(
        prompts, [5] * 9, chunk_size=4, max_seqs=30, admission="two lists", whole_pages=True
    )
    inner = np.setdiff1d(np.arange(run.tree.num_nodes), run.tree.leaf_node)
    assert run.tree.edge_len[inner].tolist() == [0, 0, 8]  # the root's, that of the 7s, the rest
    batches = run.finish()
    assert sum(batch.num_prefill_tokens for batch in batches) == run.tree.num_unique_tokens
    assert run.batcher.free_pages == run.num_pages


def test_work_left_follows_planned_lengths_that_an_ended_output_corrects():
    prompts = [[0], [0, 0], [1], [0, 0], *[[0]] * 4, [1], [1], [0, 0], [0]]
    outputs, begun = [1, 4, 7, 2, *[1] * 6, 2, 1], [0, 0, 6, *[0] * 9]
    most = [*outputs[:9], 2, *outputs[10:]]
    run = TinyRun(
        prompts, outputs, num_pages=23, page_size=1, chunk_size=4, max_output=most, begun=begun
    )
    run.finish()
    counts = run.batcher.state.counts
    assert counts["bias"] > 1
    assert counts["rest_decodes"] == pytest.approx(0, abs=1e-6)
    assert counts["rest_context"] == pytest.approx(0, abs=1e-6)


def test_the_youngest_request_of_the_right_is_preempted_and_comes_back():
    # believed to end at once, so all come in; left takes 0 and 1, right 3 and 2
    run = TinyRun(
        distinct([4] * 4),
        [12] * 4,
        num_pages=9,
        chunk_size=100,
        admission="two-ended",
        believed=[1] * 4,
    )
    first = run.step()
    assert sorted(first.request.tolist()) == [0, 1, 2, 3]
    order = first.request.tolist()
    youngest_right = max((2, 3), key=order.index)
    while not run.batcher.preemptions:
        batch = run.step()
    assert set(range(4)) - set(batch.request.tolist()) == {youngest_right}
    assert run.batcher.recomputed_tokens == 0
    run.finish()
    assert run.generated == [12] * 4
    assert run.batcher.recomputed_tokens > 0


def test_known_lengths_keep_requests_out_that_would_not_fit_to_the_end():
    run = TinyRun(distinct([4] * 4), [12] * 4, num_pages=9, chunk_size=100)
    run.finish()
    assert run.generated == [12] * 4
    assert run.batcher.preemptions == 0


def test_a_preempted_request_computes_its_own_answer_again_as_a_prompt():
    run = TinyRun(distinct([4] * 3), [12] * 3, num_pages=7, chunk_size=100, believed=[1] * 3)
    while not run.batcher.recomputed_tokens:
        batch = run.step()
    begun_again = (batch.start == 0) & (batch.num_tokens > 4)
    assert begun_again[batch.num_decodes :].any()


def test_num_right_tells_who_runs_from_where():
    run = TinyRun(distinct([1] * 6), [5] * 6, chunk_size=100, admission="two-ended")
    batch = run.step()
    assert sorted(batch.request.tolist()) == [0, 3, 4, 5]  # the left has 0.29 of the memory
    assert run.batcher.num_running == 4
    assert run.batcher.num_right == 3
    assert run.batcher.num_waiting == 2


def test_requests_that_fit_in_no_pages_are_named_and_left_out():
    run = TinyRun(distinct([4, 100, 4]), [2, 2, 2], num_pages=8)
    assert run.batcher.too_large.tolist() == [1]
    run.finish()
    assert run.generated == [2, 0, 2]


def test_an_output_beyond_its_limit_that_outgrows_memory_is_an_error():
    run = TinyRun(distinct([4]), [100], num_pages=5, max_output=[8])
    with pytest.raises(BackendError, match="one request alone"):
        run.finish()


def test_an_empty_job_ends_at_once():
    prompts = distinct([4])
    run = TinyRun(prompts, [1])
    run.finish()
    assert run.step() is None


def test_the_ratio_budget_keeps_compute_and_reads_in_proportion():
    # short and long outputs; the fixed budget takes all prompts first
    lengths, outputs = [60] * 40 + [4] * 8, [2] * 40 + [300] * 8

    def spread(budget: str) -> float:
        run = TinyRun(
            distinct(lengths),
            outputs,
            chunk_size=200,
            max_seqs=64,
            admission="two lists",
            budget=budget,
            num_pages=10_000,
        )
        batches = run.finish()
        when = np.repeat(np.arange(len(batches)), [batch.num_prefill_tokens for batch in batches])
        return float(np.median(when)) / len(batches)

    assert spread("fixed") < 0.1 < 0.2 < spread("ratio")
