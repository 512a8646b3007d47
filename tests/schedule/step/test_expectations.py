"""Learned output lengths: survival from finished and running outputs."""

import numpy as np
import pytest

from blendrun.schedule.step import expectations
from blendrun.schedule.step.begin import BatchLimits, Steering, new_state
from blendrun.schedule.step.expectations import bin_edges, learn
from blendrun.schedule.step.state import State
from tiny_jobs import tree_of
from tiny_steps import PRICES, TinyRun, batcher_job, distinct, from_python

bin_of = from_python(expectations.bin_of)
rest_of = from_python(expectations.rest_of)


def state_of(num_requests: int, prior: int = 100, max_output: int = 100_000) -> State:
    tree = tree_of(distinct([3] * num_requests))
    job = batcher_job(
        tree,
        [1] * num_requests,
        believed=[prior] * num_requests,
        max_output=[max_output] * num_requests,
        learned=True,
    )
    return new_state(job, BatchLimits(1000, 1, 100, num_requests), PRICES, Steering(learns=True))


def observe(state: State, ended: np.ndarray, running: tuple[int, ...] = ()) -> None:
    """Outputs that have ended, all of stratum 0, and the ages of running ones."""
    state.requests["stratum"] = 0
    for length in ended:
        state.lengths.events[0, bin_of(state.lengths, float(length))] += 1
    for i, age in enumerate(running):
        state.requests["known_len"][i] = state.requests["prompt_len"][i] + age
        state.slots["request"][i], state.ordered.by_age[i] = i, i
    state.counts["num_running"] = len(running)
    learn(state)


def test_bins_hold_single_tokens_first_and_then_grow_by_about_a_twelfth():
    edges = bin_edges(10_000)
    assert edges[:10].tolist() == list(range(1, 11))
    assert (np.diff(edges)[30:] / edges[30:-1] < 0.09).all()
    assert edges[-1] > 20_000


def test_with_nothing_seen_the_prior_stands():
    state = state_of(3, prior=100)
    observe(state, np.zeros(0))
    mean, square = rest_of(state, 0, 0)
    assert mean == pytest.approx(100, rel=0.1)
    assert square >= mean**2


@pytest.mark.parametrize("seed", range(3))
def test_finished_outputs_give_their_mean_and_square(seed: int):
    lengths = np.rint(np.random.default_rng(seed).lognormal(5, 0.8, 3000)) + 1
    state = state_of(2)
    observe(state, lengths)
    mean, square = rest_of(state, 0, 0)
    assert mean == pytest.approx(lengths.mean(), rel=0.03)
    assert square == pytest.approx((lengths**2).mean(), rel=0.08)


def test_short_outputs_are_exact():
    state = state_of(2)
    observe(state, np.array([2, 3, 4, 5, 6] * 50))
    assert rest_of(state, 0, 0)[0] == pytest.approx(4)


def test_the_rest_grows_with_age_where_lengths_vary_widely():
    lengths = np.rint(np.random.default_rng(0).lognormal(5, 1.0, 5000)) + 1
    state = state_of(2)
    observe(state, lengths)
    for age in (50, 200, 800):
        true = (lengths[lengths > age] - age).mean()
        assert rest_of(state, 0, age)[0] == pytest.approx(true, rel=0.1)


def test_running_outputs_count_for_as_long_as_they_have_lasted():
    state = state_of(8)
    observe(state, np.array([10] * 4), running=(500, 500, 500, 500))
    mean, _ = rest_of(state, 0, 0)
    # half ended at 10; the rest has lasted 500 and is taken to end at about twice that
    assert mean == pytest.approx((10 + 1000) / 2, rel=0.15)


def test_an_output_never_is_expected_beyond_its_limit():
    state = state_of(2, max_output=64)
    observe(state, np.array([500] * 20))
    assert rest_of(state, 0, 0)[0] == 64
    assert rest_of(state, 0, 60)[0] == 4


def test_running_outputs_are_taken_to_end_at_the_longest_that_is_allowed():
    means = []
    for max_output in (100_000, 250):
        state = state_of(40, max_output=max_output)
        observe(state, np.full(20, 5), running=(200,) * 20)
        means.append(rest_of(state, 0, 0)[0])
    assert means == [pytest.approx((5 + 400) / 2, rel=0.1), pytest.approx((5 + 250) / 2, rel=0.1)]


def test_a_planned_length_that_has_passed_is_taken_to_be_two_thirds():
    tree = tree_of(distinct([3]))
    job = batcher_job(tree, [50], believed=[50], max_output=[1000])
    state = new_state(job, BatchLimits(1000, 1, 100, 1), PRICES, Steering())
    assert rest_of(state, 0, 10)[0] == 40
    assert rest_of(state, 0, 70)[0] == 35


def test_planned_lengths_are_corrected_when_outputs_go_beyond_them():
    run = TinyRun(
        distinct([3] * 40), [60] * 40, believed=[20] * 40, max_output=[200] * 40, num_pages=4000
    )
    run.finish()
    assert 2 < run.batcher.state.counts["bias"] < 4


def test_right_plans_are_left_alone():
    run = TinyRun(distinct([3] * 40), [20 + i for i in range(40)], num_pages=4000)
    run.finish()
    assert run.batcher.state.counts["bias"] == 1


@pytest.mark.parametrize(("ended", "unsure"), [(9, 1), (10, 0)])
def test_a_stratum_is_unsure_while_more_of_it_runs_than_has_ended(ended: int, unsure: int):
    state = state_of(40)
    state.lengths.strata["finished"] = ended
    observe(state, np.full(ended, 50), running=(60,) * 10)
    assert state.counts["num_unlearned"] == 0
    assert state.counts["num_unsure"] == unsure
