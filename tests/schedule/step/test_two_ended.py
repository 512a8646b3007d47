"""How memory and prefill are divided between the ends of one sequence."""

import pytest

from blendrun.schedule.step import two_ended
from tiny_steps import DENSE, PRICES, SPARSE, TinyRun, distinct, from_python

left_share = from_python(two_ended.left_share)
two_ended_tokens = from_python(two_ended.two_ended_tokens)


def run(prompt_len: int = 40, **settings: int) -> TinyRun:
    """Eight requests whose densities fall from DENSE to SPARSE; the root's is 1."""
    settings = {"num_pages": 400, "page_size": 1, "chunk_size": 10_000, **settings}
    return TinyRun(distinct([prompt_len] * 8), [20] * 8, admission="two-ended", **settings)


def test_the_left_has_the_memory_with_which_the_mix_has_the_roots_density():
    share = left_share(run().batcher.state)
    assert share * DENSE + (1 - share) * SPARSE == pytest.approx(1.0)


def test_prefill_keeps_up_with_what_the_memory_of_both_sides_reads():
    state = run(prompt_len=4000).batcher.state
    state.counts.right_in_use = 400  # more than its share
    # a request reads one second in all, for 4,000 tokens of prompt
    wanted = 400 * PRICES.context_s * 4000
    assert two_ended_tokens(state) == (int(wanted) + 128) // 128 * 128


def test_prefill_is_full_chunks_at_most():
    state = run(prompt_len=4000, chunk_size=100).batcher.state
    state.counts.right_in_use = 400
    assert two_ended_tokens(state) == 100


def test_prefill_waits_for_the_right_to_fill_its_share():
    state = run(prompt_len=40_000).batcher.state
    state.counts.right_in_use = 400
    full = two_ended_tokens(state)
    state.counts.right_in_use = 400 * (1 - left_share(state)) / 4
    assert abs(4 * two_ended_tokens(state) - full) <= 4 * 128


@pytest.mark.parametrize("place", [0, 8])
def test_the_sides_are_equal_when_only_preempted_requests_wait(place: int):
    state = run().batcher.state
    state.counts.at_left = state.counts.at_right = place
    assert left_share(state) == 0.5
