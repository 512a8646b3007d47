"""Requests that move between batchers: each is answered once, and the sums stay right."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.begin import ADMISSION, BatchLimits, Steering
from tiny_jobs import prompt_lists, tree_of
from tiny_steps import PRICES, TinyRun, batcher_job, distinct

SUMS = ("prefill_s", "rest_decodes", "rest_context", "num_waiting")


@st.composite
def runs(draw: st.DrawFn) -> TinyRun:
    prompts = draw(prompt_lists(min_size=2, max_size=12))
    outputs = [draw(st.integers(1, 12)) for _ in prompts]
    return TinyRun(
        prompts,
        outputs,
        num_pages=200,
        chunk_size=draw(st.integers(3, 30)),
        max_seqs=draw(st.integers(1, 6)),
        admission=draw(st.sampled_from(sorted(ADMISSION))),
        learns=draw(st.booleans()),
        share=draw(st.booleans()),
        begun=[draw(st.integers(0, d - 1)) for d in outputs] if draw(st.booleans()) else None,
    )


@settings(max_examples=150, deadline=None)
@given(runs(), st.data())
def test_what_is_withdrawn_does_not_run_and_what_is_given_back_does(
    run: TinyRun, data: st.DataObject
):
    n = len(run.prompts)
    for _ in range(data.draw(st.integers(0, 4))):
        run.step()
    asked = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)), np.int32)
    waiting, generated = run.batcher.num_waiting, list(run.generated)
    taken, freed = run.batcher.withdraw(asked)
    assert not len(freed.slots)
    assert set(taken.tolist()) <= set(asked.tolist())
    assert run.batcher.num_waiting == waiting - len(taken)
    for _ in range(data.draw(st.integers(0, 4))):
        run.step()
    assert all(run.generated[r] == generated[r] for r in taken)
    back = taken[: data.draw(st.integers(0, len(taken)))]
    assert not len(run.batcher.deposit(back, tokens(run, back)))
    run.finish()
    gone = set(taken.tolist()) - set(back.tolist())
    for request in range(n):
        expected = generated[request] if request in gone else run.output_len[request]
        assert run.generated[request] == expected
    assert run.batcher.free_pages == run.num_pages


def tokens(run: TinyRun, requests: np.ndarray) -> np.ndarray:
    return np.array(run.generated, np.int32)[requests]


@settings(max_examples=150, deadline=None)
@given(runs(), st.data())
def test_running_requests_that_move_go_on_with_what_they_have(run: TinyRun, data: st.DataObject):
    for _ in range(data.draw(st.integers(1, 8))):
        run.step()
    running, generated = run.batcher.num_running, list(run.generated)
    taken, freed = run.batcher.release(np.inf, data.draw(st.integers(0, 100)))
    assert len(freed.slots) == len(taken)
    assert run.batcher.num_running == running - len(taken)
    assert run.batcher.num_running or not running
    for _ in range(data.draw(st.integers(0, 4))):
        run.step()
    assert all(run.generated[r] == generated[r] for r in taken)
    assert not len(run.batcher.deposit(taken, tokens(run, taken)))
    run.finish()
    assert run.generated == list(run.output_len)
    assert run.batcher.free_pages == run.num_pages
    counts = run.batcher.state.counts
    assert counts["rest_decodes"] == pytest.approx(0, abs=1e-6)
    assert counts["rest_context"] == pytest.approx(0, abs=1e-6)


def test_requests_with_most_left_to_do_move_first_and_one_stays():
    run = TinyRun(distinct([2, 2, 2, 2]), [900, 50, 700, 400], max_seqs=4, chunk_size=100)
    for _ in range(3):
        run.step()
    slots = run.batcher.state.slots
    left_s = {int(s["request"]): s["rest_context"] * PRICES.context_s for s in slots}
    assert not len(run.batcher.release(left_s[1] / 2, 1000)[0]), "each has more left"
    assert run.batcher.release(left_s[2] + left_s[1], 1000)[0].tolist() == [2]
    assert run.batcher.release(np.inf, 3)[0].tolist() == [], "there is no room"
    assert run.batcher.release(np.inf, 1000)[0].tolist() == [0, 3]


def test_those_that_have_most_left_for_what_they_repeat_move_first():
    """The first has more KV reads left than the others, and 500 tokens to compute again."""
    run = TinyRun(distinct([2, 2, 2]), [1400, 900, 700], begun=[500, 0, 0], chunk_size=600)
    for _ in range(3):
        run.step()
    slots = run.batcher.state.slots
    left_s = {int(s["request"]): s["rest_context"] * PRICES.context_s for s in slots}
    assert left_s[0] > left_s[1] + left_s[2]
    assert run.batcher.release(left_s[0], 1000)[0].tolist() == [1, 2]


def test_what_comes_from_elsewhere_takes_its_place_in_the_planned_order():
    job = batcher_job(tree_of([[i] for i in range(6)]), [3] * 6)
    order = np.array([5, 3, 1, 0, 2, 4], np.int32)
    job = replace(job, order=order[::2], place=np.argsort(order).astype(np.int32))
    batcher = Batcher(job, BatchLimits(100, 4, 20, 1), PRICES, Steering("one list"))
    batcher.deposit(order[[1, 5]], np.zeros(2, np.int32))
    assert batcher.state.lists.left.tolist() == [5, 3, 1, 2, 4]


@pytest.mark.parametrize("admission", ADMISSION)
@pytest.mark.parametrize("learned", [False, True])
def test_a_batcher_with_what_it_was_given_is_like_one_that_began_with_it(
    admission: str, learned: bool
):
    prompts = [[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6], [7], [7, 8, 9], [1, 2, 3, 3]]
    believed = [10] * 6 if learned else None  # which a stratum has the mean of
    lengths = [3, 9, 2, 30, 4, 1]
    job = batcher_job(
        tree_of(prompts), lengths, believed=believed, max_output=[40] * 6, learned=learned
    )
    limits, how = BatchLimits(100, 4, 20, 4), Steering(admission, "fixed", learned)

    def batcher(order: list[int]) -> Batcher:
        chosen = job.without(np.setdiff1d(job.order, order))
        return Batcher(chosen, limits, PRICES, how)

    moved = batcher([0, 1, 2, 3])
    taken, _ = moved.withdraw(np.array([1, 3], np.int32))
    moved.deposit(np.array([4, 5], np.int32), np.zeros(2, np.int32))
    fresh = batcher([0, 2, 4, 5])
    assert sorted(taken.tolist()) == [1, 3]
    for name in SUMS:
        assert moved.state.counts[name] == pytest.approx(fresh.state.counts[name])
    inner = np.setdiff1d(np.arange(job.tree.num_nodes), job.tree.leaf_node)
    waiting = [made.state.nodes["waiting"][inner] for made in (moved, fresh)]
    assert np.array_equal(*waiting)
    assert np.array_equal(moved.state.lengths.strata["total"], fresh.state.lengths.strata["total"])
