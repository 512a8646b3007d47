"""Requests that move between batchers: each is answered once, and the sums stay right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.begin import ADMISSION, BatchLimits, Steering
from blendrun.schedule.step.outputs import Outputs
from tiny_jobs import prompt_lists, tree_of
from tiny_steps import PRICES, TinyRun, batcher_job

NOTHING = np.zeros(0, np.int32)
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
    assert not len(run.batcher.deposit(back))
    run.finish()
    gone = set(taken.tolist()) - set(back.tolist())
    for request in range(n):
        expected = generated[request] if request in gone else run.output_len[request]
        assert run.generated[request] == expected
    assert run.batcher.free_pages == run.num_pages


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
    moved.deposit(np.array([4, 5], np.int32))
    fresh = batcher([0, 2, 4, 5])
    assert sorted(taken.tolist()) == [1, 3]
    for name in SUMS:
        assert moved.state.counts[name] == pytest.approx(fresh.state.counts[name])
    inner = np.setdiff1d(np.arange(job.tree.num_nodes), job.tree.leaf_node)
    waiting = [made.state.nodes["waiting"][inner] for made in (moved, fresh)]
    assert np.array_equal(*waiting)
    assert np.array_equal(moved.state.lengths.strata["total"], fresh.state.lengths.strata["total"])


def test_outputs_that_ended_elsewhere_are_learned_from():
    prompts = [[i, 1] for i in range(10)]
    job = batcher_job(tree_of(prompts), [4] * 10, believed=[50] * 10, max_output=[100] * 10,
                      learned=True)  # fmt: skip
    batcher = Batcher(job, BatchLimits(500, 4, 20, 4), PRICES, Steering("two lists", learns=True))
    before = float(batcher.state.counts["rest_decodes"])
    batcher.observe(
        Outputs(np.arange(8, dtype=np.int32), np.full(8, 4, np.int32), NOTHING, NOTHING)
    )
    assert batcher.state.lengths.strata["mean_len"][0] == pytest.approx(4, abs=1)
    assert batcher.state.counts["rest_decodes"] < before / 5


def test_outputs_that_run_elsewhere_count_for_as_long_as_they_have_lasted():
    job = batcher_job(tree_of([[i, 1] for i in range(20)]), [4] * 20, believed=[50] * 20,
                      max_output=[1000] * 20, learned=True)  # fmt: skip
    ended, lasting = np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)
    four, age = np.full(8, 4, np.int32), np.full(8, 200, np.int32)
    means = []
    for running in (NOTHING, lasting):
        batcher = Batcher(
            job, BatchLimits(5000, 4, 20, 4), PRICES, Steering("two lists", learns=True)
        )
        batcher.observe(Outputs(ended, four, running, age[: len(running)]))
        # each time all that run are told, not those that are new
        batcher.observe(Outputs(NOTHING, NOTHING, running, age[: len(running)]))
        means.append(float(batcher.state.lengths.strata["mean_len"][0]))
    # half ended at 4; the others have lasted 200 and are taken to end at about twice that
    assert means == [pytest.approx(4, abs=1), pytest.approx((4 + 400) / 2, rel=0.15)]
