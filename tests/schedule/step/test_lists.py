"""Left and right list, and who comes next from them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step import lists
from blendrun.schedule.step.begin import BatchLimits, Steering
from tiny_jobs import tree_of
from tiny_steps import PRICES, TinyRun, batcher_job, distinct, from_python

last_waiting = from_python(lists.last_waiting)
next_waiting = from_python(lists.next_waiting)
take_right = from_python(lists.take_right)


def batcher(prompt_len: list[int], output_len: list[int], **how: object) -> Batcher:
    job = batcher_job(tree_of(distinct(prompt_len)), output_len)
    limits = BatchLimits(100_000, 1, 1000, 64)
    return Batcher(job, limits, PRICES, Steering("two lists", "ratio", **how))


def test_dense_requests_wait_on_the_left_in_order_and_others_on_the_right_longest_first():
    made = batcher([5000, 3, 6000, 3, 3], [2, 400, 2, 900, 500])
    assert made.state.lists.left.tolist() == [0, 2]
    assert made.state.lists.right.tolist() == [3, 4, 1]


def test_the_left_share_of_memory_grows_with_what_the_left_needs():
    little = batcher([5000, 3], [2, 400]).state.counts["left_share"]
    much = batcher([5000] * 20 + [3], [4] * 20 + [400]).state.counts["left_share"]
    assert 0 < little < much <= 0.6


@given(st.lists(st.integers(0, 11), max_size=30), st.integers(0, 12))
def test_taken_places_of_the_right_list_are_skipped(taken: list[int], place: int):
    state = batcher([3] * 12 + [9000], [400 + i for i in range(12)] + [2]).state
    # the least dense half of the requests is on the right; take what there is
    n = len(state.lists.right)
    gone = {t for t in taken if t < n}
    for t in gone:
        take_right(state, t)
    waiting = [i for i in range(n) if i not in gone]
    place = min(place, n)
    assert next_waiting(state, place) == min((i for i in waiting if i >= place), default=n)
    assert last_waiting(state, place) == max((i for i in waiting if i < place), default=-1)


def test_the_longest_request_that_fits_comes_in_first():
    run = TinyRun(
        distinct([3, 3, 3, 9000]),
        [15_000, 15_000, 3000, 2],
        num_pages=20_000,
        page_size=1,
        chunk_size=20,
        admission="two lists",
    )
    # 15,000 tokens come in once; beside them 3,000 fit, another 15,000 do not
    assert run.step().new_request.tolist()[:2] == [0, 2]


def test_a_sample_of_every_stratum_comes_first_where_lengths_are_learned():
    prompts = [[s, s, i, i] for s in range(2) for i in range(100, 300)]
    job = batcher_job(tree_of(prompts), [5] * 400, learned=True)
    limits = BatchLimits(100_000, 1, 1000, 64)
    sample = Batcher(job, limits, PRICES, Steering("two lists", learns=True)).state.lists.sample
    assert len(sample) == 32
    assert [int((sample < 200).sum()), int((sample >= 200).sum())] == [16, 16]
    assert len(np.unique(sample)) == 32
    assert {bool(r < 200) for r in sample[:2]} == {True, False}  # the strata in turn
