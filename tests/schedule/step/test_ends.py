"""The projection of KV use over the expected ends of running requests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.schedule.step import ends
from blendrun.schedule.step.begin import BatchLimits, Steering, new_state
from blendrun.schedule.step.state import State
from tiny_jobs import tree_of
from tiny_steps import PRICES, batcher_job, distinct, from_python

fits = from_python(ends.fits)
insert_end = from_python(ends.insert_end)
remove_end = from_python(ends.remove_end)
update_headroom = from_python(ends.update_headroom)


def running(held: list[int], rest: list[int], num_pages: int, candidate: int) -> State:
    """Requests that hold `held` tokens and run `rest` more steps; the last one still waits."""
    lengths = [*held, candidate]
    tree = tree_of(distinct(lengths))
    job = batcher_job(tree, [1] * len(lengths))
    state = new_state(
        job, BatchLimits(num_pages, 1, 100, len(lengths)), PRICES, Steering("two lists")
    )
    for slot, (tokens, steps) in enumerate(zip(held, rest, strict=True)):
        state.slots["request"][slot] = slot
        state.slots["computed"][slot] = state.slots["goal"][slot] = tokens
        state.slots["end_step"][slot] = steps
        insert_end(state, slot, slot)
        state.counts["num_running"] += 1
    return state


def peak(held: list[int], rest: list[int], candidate: int, decodes: int) -> int:
    """Most tokens held at any step while the candidate runs."""
    most = 0
    for t in range(decodes + 1):
        alive = [h + t for h, r in zip(held, rest, strict=True) if r >= t]
        most = max(most, sum(alive) + candidate + 1 + t)
    return most


sizes = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(sizes, st.integers(1, 40), st.integers(0, 60), st.integers(20, 800))
def test_a_request_fits_when_the_projected_peak_stays_below_the_cap(
    others: list[tuple[int, int]], candidate: int, decodes: int, num_pages: int
):
    held, rest = [h for h, _ in others], [r for _, r in others]
    state = running(held, rest, num_pages, candidate)
    most = peak(held, rest, candidate, decodes)
    found = fits(state, len(held), 0, 0, float(decodes), True)
    assert found == (most <= 0.99 * num_pages)


@settings(max_examples=200, deadline=None)
@given(sizes, st.integers(1, 40), st.integers(0, 60), st.integers(20, 800))
def test_the_quick_answer_is_never_more_generous(
    others: list[tuple[int, int]], candidate: int, decodes: int, num_pages: int
):
    held, rest = [h for h, _ in others], [r for _, r in others]
    state = running(held, rest, num_pages, candidate)
    update_headroom(state)
    quick = fits(state, len(held), 0, 0, float(decodes), False)
    assert quick == (peak(held, rest, candidate, decodes) <= 0.99 * num_pages)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_the_list_of_ends_stays_sorted(ends: list[int], data: st.DataObject):
    state = running([1] * len(ends), ends, 1000, 1)
    by_end, end_step = state.ordered.by_end, state.slots["end_step"]
    assert end_step[by_end[: len(ends)]].tolist() == sorted(ends)
    gone = data.draw(st.integers(0, len(ends) - 1))
    remove_end(state, gone, len(ends))
    left = by_end[: len(ends) - 1]
    assert gone not in left
    assert (np.diff(end_step[left]) >= 0).all()


@pytest.mark.parametrize(("decodes", "expected"), [(400, True), (2000, False)])
def test_the_right_side_leaves_memory_to_the_left_in_the_long_run(decodes: int, expected: bool):
    state = running([10], [10], 4000, 100)
    state.counts["left_share"] = 0.6
    assert fits(state, 1, 0, 0, float(decodes), True) is expected
    assert fits(state, 1, 0, 0, float(decodes), False) is True
