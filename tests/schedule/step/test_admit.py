"""When a request may come in."""

import numpy as np
import pytest

from blendrun.schedule.step import admit
from blendrun.schedule.step.begin import BatchLimits, Steering, new_state
from blendrun.schedule.step.state import UNLEARNED, State
from tiny_jobs import tree_of
from tiny_steps import PRICES, batcher_job, distinct, from_python

is_last_call = from_python(admit._is_last_call)
has_room = from_python(admit.has_room)
CONTEXT = 1000  # tokens that running requests hold


def learned(lengths: list[int], rest_steps: float) -> State:
    """All requests of one stratum, of which outputs had these lengths; so many steps are left."""
    believed = [int(np.mean(lengths))] * 4
    job = batcher_job(
        tree_of(distinct([3] * 4)), [1] * 4, believed=believed, max_output=[5000] * 4, learned=True
    )
    state = new_state(job, BatchLimits(4000, 1, 100, 4), PRICES, Steering("two lists", learns=True))
    state.requests["stratum"] = 0
    state.lengths.strata["mean_len"] = np.mean(lengths)
    state.lengths.strata["square_len"] = np.mean(np.square(lengths))
    state.counts["num_unlearned"] = 0
    state.counts["context"], state.counts["rest_context"] = CONTEXT, rest_steps * CONTEXT
    return state


@pytest.mark.parametrize(
    ("lengths", "rest_steps", "expected"),
    [
        ([100, 100], 99, True),
        ([100, 100], 101, False),
        ([50, 150], 249, True),  # 100, and three times 50
        ([50, 150], 251, False),
        ([4900, 9900], 4999, True),  # no output is longer than its limit
        ([4900, 9900], 5001, False),
    ],
)
def test_when_no_more_steps_are_left_than_a_long_output_takes(
    lengths: list[int], rest_steps: int, expected: bool
):
    state = learned(lengths, rest_steps)
    assert is_last_call(state, 0) is expected
    state.counts["num_unlearned"] = 1
    assert is_last_call(state, 0) is False
    state.counts["num_unlearned"] = 0
    state.requests["stratum"] = UNLEARNED
    assert is_last_call(state, 0) is False


@pytest.mark.parametrize(("rest_steps", "expected"), [(2100, False), (1900, True)])
def test_then_the_left_needs_no_memory_for_later(rest_steps: int, expected: bool):
    state = learned([2000, 2000], rest_steps)
    state.counts["left_share"] = 0.6
    assert has_room(state, 1, 0, True, False) is expected
    assert has_room(state, 1, 0, False, False) is True
