"""What neighbours share, with and without those between."""

from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.schedule.leaf_row import LeafRow
from tiny_jobs import prompt_lists, tree_of


def shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(prompt_lists(), st.sets(st.integers(0, 13)))
def test_a_row_knows_what_neighbours_share(prompts, dropped: set[int]):
    tree = tree_of(prompts)
    num_dense = len(prompts) // 2
    gone = np.array(sorted(r for r in dropped if r < len(prompts)), np.int32)
    row = LeafRow.of(tree, num_dense).without(gone)
    kept = [r for r in tree.leaf_order.tolist() if r not in gone]
    assert row.requests.tolist() == kept
    assert row.num_dense == sum(r not in gone for r in tree.leaf_order[:num_dense].tolist())
    expected = [shared(prompts[kept[i - 1]], prompts[r]) if i else 0 for i, r in enumerate(kept)]
    assert row.shared_len.tolist() == expected


def test_a_tree_without_requests_is_an_empty_row():
    row = LeafRow.of(tree_of([]), 0).without(np.zeros(0, np.int32))
    assert len(row.requests) == len(row.shared_len) == row.num_dense == 0
