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
