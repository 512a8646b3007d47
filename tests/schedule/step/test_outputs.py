"""Batchers of one job learn output lengths from each other."""

import numpy as np
import pytest

from blendrun.schedule.step.expectations import learn
from blendrun.schedule.step.outputs import Outputs, observed
from tiny_steps import TinyRun

ENDED, LASTING = [4] * 8, [200] * 8


def learner(output_len: list[int]) -> TinyRun:
    """All of its requests run at once, and it believes that outputs have 50 tokens."""
    n = len(output_len)
    return TinyRun(
        [[i, 1] for i in range(n)], output_len, num_pages=5000, chunk_size=100, max_seqs=n,
        admission="two lists", believed=[50] * n, max_output=[1000] * n, learns=True,
    )  # fmt: skip


def after(run: TinyRun, steps: int) -> TinyRun:
    for _ in range(steps):
        run.step()
    return run


def test_outputs_are_those_that_ended_and_those_that_run():
    run = after(learner([3, 3, 5, 90, 90]), 20)
    outputs = Outputs.of(run.batcher.state)
    edge = run.batcher.state.lengths.edge
    ended = {
        int(edge[place]): int(n) for place, n in zip(outputs.place, outputs.ended, strict=True)
    }
    assert {length: n for length, n in ended.items() if n} == {3: 2, 5: 1}
    assert outputs.running.sum() == 2
    (place,) = outputs.place[outputs.running > 0]
    assert edge[place] <= run.generated[3] < edge[place + 1]
    assert not outputs.without_running().running.any()


def test_the_total_has_each_place_once():
    place = np.array([1, 5]), np.array([5, 9])
    count = np.array([1, 2], np.int32)
    both = Outputs.total([Outputs(place[0], count, 2 * count), Outputs(place[1], count, count)])
    assert both.place.tolist() == [1, 5, 9]
    assert both.ended.tolist() == [1, 3, 2]
    assert both.running.tolist() == [2, 5, 2]
    assert not len(Outputs.total([]).place)


@pytest.mark.parametrize(("others", "mean_len"), [(ENDED, 4), (ENDED + LASTING, 100)])
def test_outputs_that_run_elsewhere_count_for_as_long_as_they_have_lasted(
    others: list[int], mean_len: float
):
    elsewhere, run = after(learner(others), 100), after(learner([1000] * 4), 1)
    for _ in range(2):  # told again, they are not counted again
        observed(run.batcher.state, Outputs.of(elsewhere.batcher.state))
    learn(run.batcher.state)
    # half ended at 4; the others have lasted 100 and are taken to end at about twice that
    learned = float(run.batcher.state.lengths.strata["mean_len"][0])
    assert learned == pytest.approx(mean_len, rel=0.2)


def test_batchers_that_tell_each_other_expect_the_same():
    runs = after(learner([2, 9, 9, 40, 300]), 60), after(learner([7, 7, 200, 200, 300]), 60)
    told = [Outputs.of(run.batcher.state) for run in runs]
    means = []
    for run, others in zip(runs, reversed(told), strict=True):
        observed(run.batcher.state, others)
        learn(run.batcher.state)
        means.append(float(run.batcher.state.lengths.strata["mean_len"][0]))
    assert means[0] == pytest.approx(means[1], rel=0.1)


@pytest.mark.parametrize(("others", "is_enough"), [(ENDED, True), (ENDED + LASTING * 2, False)])
def test_a_stratum_is_learned_where_others_have_seen_most_outputs_end(
    others: list[int], is_enough: bool
):
    run = after(learner([1000] * 20), 1)
    observed(run.batcher.state, Outputs.of(after(learner(others), 20).batcher.state))
    assert run.batcher.state.lengths.strata["told"].tolist() == [is_enough]


def test_outputs_that_ended_elsewhere_let_more_run_at_once():
    run = after(learner([1000] * 60), 5)
    before = int(run.batcher.state.counts["num_running"])
    observed(run.batcher.state, Outputs.of(after(learner(ENDED * 4), 200).batcher.state))
    after(run, 5)
    # the worst case does not fit: 16, and one for each two of those that ended
    assert before < 20
    assert run.batcher.state.counts["num_running"] == 32
