"""Runs of siblings move up with a copy of their prefix, and nothing is left empty."""

import numpy as np
import pytest

from blendrun.tree.detach import detach
from blendrun.tree.misplaced import Runs
from blendrun.tree.prefix_tree import ROOT, PrefixTree
from tiny_jobs import tree_of

PROMPTS = [[5, 5, 5, 1], [5, 5, 5, 2], [5, 5, 5, 3], [6]]


def runs_to_root(tree: PrefixTree, *requests: list[int]) -> Runs:
    members = np.array([tree.leaf_node[r] for run in requests for r in run], np.int32)
    parent = np.array([tree.parent[tree.leaf_node[run[0]]] for run in requests], np.int32)
    nothing = np.zeros(len(requests))
    return Runs(
        members,
        np.repeat(np.arange(len(requests)), [len(run) for run in requests]),
        parent,
        np.full(len(requests), ROOT, np.int32),
        tree.depth[parent],
        nothing,
        nothing,
    )


@pytest.mark.parametrize(
    ("moved", "copies", "num_nodes"),
    [
        ([[1]], 1, 6),  # a single request needs no node above it
        ([[0, 1]], 1, 7),
        ([[0], [1]], 2, 6),
        ([[0, 1], [2]], 1, 6),  # the prefix that nobody needs any more is gone
        ([[0], [1], [2]], 2, 5),
    ],
)
def test_a_run_takes_a_copy_of_its_prefix_along(moved, copies: int, num_nodes: int):
    tree = tree_of(PROMPTS)
    made = detach(tree, runs_to_root(tree, *moved))
    made.check_integrity()
    assert made.prompt_len.tolist() == tree.prompt_len.tolist()
    assert made.num_unique_tokens == tree.num_unique_tokens + 3 * copies
    assert made.num_nodes == num_nodes
    groups = [made.path(int(made.leaf_node[run[0]]))[0] for run in moved]
    assert len(set(groups)) == len(moved)
    for run, group in zip(moved, groups, strict=True):
        below = made.leaf_order[made.first_leaf[group] : made.last_leaf[group]]
        assert sorted(below) == run


def test_a_run_that_its_members_leave_in_turn_takes_no_copy_along():
    prompts = [[5, 1, 1, i] for i in range(2)] + [[5, 2, 2, i] for i in range(2)] + [[5, 3], [6]]
    tree = tree_of(prompts)
    inner = [tree.path(int(tree.leaf_node[r]))[1] for r in (0, 2)]
    leaves = runs_to_root(tree, [0, 1], [2, 3])
    both = Runs(
        np.concatenate([inner, leaves.member]).astype(np.int32),
        np.concatenate([[0, 0], leaves.run + 1]),
        np.concatenate([tree.parent[inner[:1]], leaves.parent]),
        np.zeros(3, np.int32),
        *(np.zeros(3) for _ in range(3)),
    )
    made = detach(tree, both)
    made.check_integrity()
    assert made.num_unique_tokens == tree.num_unique_tokens + 2
    assert made.num_nodes == tree.num_nodes
