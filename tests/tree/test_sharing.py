"""Prompt tokens that an order computes, by the reach of the KV memory."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.tree.sharing import computed_prompt_tokens
from tiny_jobs import prompt_lists, tree_of

UNLIMITED = 2**60


@st.composite
def jobs(draw: st.DrawFn):
    prompts = draw(prompt_lists())
    n = len(prompts)
    output_len = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    sequence = draw(st.permutations(range(n)))
    return tree_of(prompts), np.array(sequence, np.int32), np.array(output_len, np.int32)


@given(jobs())
def test_with_endless_memory_each_prefix_is_computed_once_in_any_order(job):
    tree, sequence, output_len = job
    assert computed_prompt_tokens(tree, sequence, output_len, UNLIMITED) == tree.num_unique_tokens


@given(jobs())
def test_with_no_memory_everything_is_computed(job):
    tree, sequence, output_len = job
    assert computed_prompt_tokens(tree, sequence, output_len, 0) == tree.num_prompt_tokens


@given(jobs())
def test_more_memory_never_computes_more(job):
    tree, sequence, output_len = job
    counts = [computed_prompt_tokens(tree, sequence, output_len, cap) for cap in range(0, 150, 3)]
    assert (np.diff(counts) <= 0).all()


def test_a_prefix_is_lost_between_requests_that_lie_far_apart():
    tree = tree_of([[1, 1, 1, 1], [2] * 10, [1, 1, 1, 2]])
    output_len = np.array([5, 5, 5], np.int32)
    near, far = np.array([0, 2, 1], np.int32), np.array([0, 1, 2], np.int32)
    assert computed_prompt_tokens(tree, near, output_len, 12) == 4 + 1 + 10
    assert computed_prompt_tokens(tree, far, output_len, 12) == 4 + 10 + 4
    assert computed_prompt_tokens(tree, far, output_len, 24) == 4 + 10 + 1
