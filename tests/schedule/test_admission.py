"""The queue with two ends, and the memory that each end may fill."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.schedule.admission import (
    LEFT,
    RIGHT,
    AdmissionQueue,
    QueueColumns,
    footprints,
    memory_partition,
)


def test_partition_of_the_papers_figure_6():
    left, right = memory_partition(3.73, 0.096, 1.27)
    assert 60 * left == pytest.approx(19.4, abs=0.1)
    assert 60 * right == pytest.approx(40.6, abs=0.1)


densities = st.one_of(st.floats(0, 1e6), st.just(np.inf))


@given(densities, densities, densities)
def test_partition_adds_up_and_leaves_each_side_something(left, right, root):
    shares = memory_partition(left, right, root)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0.02 - 1e-12


@given(st.floats(0, 1), st.floats(2, 500), st.floats(0.05, 0.95))
def test_partition_mixes_to_the_roots_density(right, left, share):
    root = share * left + (1 - share) * right
    a, b = memory_partition(left, right, root)
    assert a * left + b * right == pytest.approx(root)


def make_queue(densities, footprint=1.0, capacity=100, two_ended=True, root=1.0):
    n = len(densities)
    columns = QueueColumns(np.array(densities, float), np.full(n, footprint, float))
    return AdmissionQueue(np.arange(n, dtype=np.int32), columns, root, capacity, two_ended)


def drain(queue: AdmissionQueue) -> list[tuple[int, int]]:
    """(side, request) in the order in which a machine without limits takes them."""
    taken = []
    while queue.num_waiting:
        side, request = queue.candidates()[0]
        assert queue.pop(side) == request
        taken.append((side, request))
    return taken


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_the_two_ends_meet_and_every_request_comes_once(values):
    taken = drain(make_queue(sorted(values, reverse=True)))
    assert sorted(request for _, request in taken) == list(range(len(values)))
    left = [request for side, request in taken if side == LEFT]
    right = [request for side, request in taken if side == RIGHT]
    assert left == list(range(len(left)))
    assert right == list(range(len(values)))[::-1][: len(right)]


def test_a_queue_with_one_end_keeps_the_order_and_uses_no_other_side():
    taken = drain(make_queue([3, 1, 2], two_ended=False))
    assert taken == [(LEFT, 0), (LEFT, 1), (LEFT, 2)]


def test_each_end_fills_its_part_of_memory_and_no_more():
    # root 1 between 3 and 0: a third for the left, two thirds for the right
    queue = make_queue([3.0] * 50 + [0.0] * 50, footprint=5, capacity=60)
    running = [0, 0]
    while found := queue.candidates():
        side = found[0][0]
        queue.pop(side)
        running[side] += 1
    assert running == [4, 8]
    assert queue.num_waiting == 88


def test_the_emptier_side_comes_first():
    queue = make_queue([3.0] * 5 + [0.0] * 5, footprint=5, capacity=60)
    queue.pop(RIGHT)
    assert [side for side, _ in queue.candidates()] == [LEFT, RIGHT]
    queue.pop(LEFT)  # now a quarter of the left part and an eighth of the right one
    assert [side for side, _ in queue.candidates()] == [RIGHT, LEFT]


def test_a_request_larger_than_its_part_runs_when_its_side_is_empty():
    queue = make_queue([3.0, 0.0, 0.0], footprint=500, capacity=60)
    assert {side for side, _ in queue.candidates()} == {LEFT, RIGHT}
    queue.pop(RIGHT)
    assert [side for side, _ in queue.candidates()] == [LEFT]


def test_a_job_that_fits_whole_is_not_held_back_by_parts():
    queue = make_queue([3.0] * 2 + [0.9] * 8, footprint=5, capacity=60, root=2.9)
    assert len(drain(queue)) == 10


def test_finishing_makes_room():
    queue = make_queue([1.0] * 3, footprint=40, capacity=60, two_ended=False)
    assert queue.pop(LEFT) == 0
    assert queue.candidates() == []
    queue.finish(LEFT, 0)
    assert queue.candidates() == [(LEFT, 1)]


def test_a_preempted_request_goes_first_on_its_side():
    queue = make_queue([3.0, 2.0, 0.2, 0.1])
    assert [queue.pop(RIGHT), queue.pop(RIGHT), queue.pop(LEFT)] == [3, 2, 0]
    queue.put_back(RIGHT, 3)
    queue.put_back(RIGHT, 2)
    assert (queue.num_preempted, queue.num_waiting) == (2, 3)
    assert dict(queue.candidates()) == {LEFT: 1, RIGHT: 2}
    assert [queue.pop(RIGHT), queue.pop(RIGHT), queue.pop(LEFT)] == [2, 3, 1]
    assert (queue.num_preempted, queue.num_waiting) == (0, 0)
    assert queue.candidates() == []


def test_popping_an_empty_side_is_refused():
    queue = make_queue([1.0])
    queue.pop(LEFT)
    with pytest.raises(IndexError):
        queue.pop(RIGHT)


def test_footprint_is_the_own_prompt_and_half_the_answer():
    assert footprints(np.array([10, 0]), np.array([4, 7])).tolist() == [12.0, 3.5]
