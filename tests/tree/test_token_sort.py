"""Sorted like Python lists, with the prefix that neighbours share."""

import os

import numpy as np
from hypothesis import example, given

from blendrun.tree.token_sort import sort_prompts
from tiny_jobs import flat, prompt_lists


@given(prompt_lists(max_size=30))
@example([[1] * n for n in range(40, 0, -1)])
@example([[9, 9, 9]] * 20)
def test_order_and_shared_lengths_are_those_of_sorted_lists(prompts: list[list[int]]):
    order, shared_len = sort_prompts(*flat(prompts))
    expected = sorted(range(len(prompts)), key=lambda i: (prompts[i], i))
    assert order.tolist() == expected
    ordered = [prompts[i] for i in expected]
    shared = [
        len(os.path.commonprefix([a, b])) for a, b in zip(ordered, ordered[1:], strict=False)
    ]
    assert shared_len.tolist() == [0, *shared]
    assert (order.dtype, shared_len.dtype) == (np.int32, np.int32)
