"""Sorted like Python lists, with the prefix that neighbours share."""

import itertools

import numpy as np
from hypothesis import example, given

from blendrun.tree.token_sort import sort_prompts
from tiny_jobs import flat, prompt_lists


def num_shared(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(prompt_lists(max_size=30))
@example([[1] * n for n in range(40, 0, -1)])
@example([[9, 9, 9]] * 20)
def test_order_and_shared_lengths_are_those_of_sorted_lists(prompts: list[list[int]]):
    order, shared_len = sort_prompts(*flat(prompts))
    expected = sorted(range(len(prompts)), key=lambda i: (prompts[i], i))
    assert order.tolist() == expected
    ordered = [prompts[i] for i in expected]
    shared = [num_shared(a, b) for a, b in itertools.pairwise(ordered)]
    assert shared_len.tolist() == [0, *shared]
    assert (order.dtype, shared_len.dtype) == (np.int32, np.int32)
