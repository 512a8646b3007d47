"""The groups of a job as a person would name them: subtrees with a beginning of their own.

The root is opened, and so is a node whose large children hold most of its requests and share more
among themselves than the node does: a system prompt above several few-shot prefixes, or a word
with which unlike prompts happen to begin. What lies below the opened nodes are the groups.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree
from blendrun.tree.strata import MIN_FRAC, common_root


@dataclass(frozen=True, slots=True)
class Groups:
    """Every request is below exactly one of `nodes`."""

    nodes: Int32  # [G] in preorder
    opened: Int32  # nodes above the groups, the root first


def groups(tree: PrefixTree) -> Groups:
    large = is_large(tree)
    opens = _opens(tree, large)
    common = common_root(tree)
    # where all prompts begin alike, a person looks for what comes after
    opens[: common + 1] = large[tree.parent == common].any()
    opened = np.zeros(tree.num_nodes, bool)
    opened[ROOT] = True
    for node in np.flatnonzero(opens[1:]) + 1:  # in preorder, parents come first
        opened[node] = opened[tree.parent[node]]
    below = opened[tree.parent] & ~opened
    return Groups(np.flatnonzero(below).astype(np.int32), np.flatnonzero(opened).astype(np.int32))


def children(tree: PrefixTree, node: int) -> Int32:
    """Nodes right below `node`, in preorder."""
    inside = np.arange(node + 1, tree.subtree_end[node], dtype=np.int32)
    below: Int32 = inside[tree.parent[inside] == node]
    return below


def is_large(tree: PrefixTree) -> npt.NDArray[np.bool_]:
    """Nodes with two requests or more and at least the share that makes a stratum, [K]."""
    return tree.request_count >= max(2, MIN_FRAC * tree.num_requests)


def _opens(tree: PrefixTree, large: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Nodes that say less of their requests than their large children do, [K]."""
    count = tree.request_count.astype(np.int64)
    saved = tree.edge_len * np.maximum(count - 1, 0)  # tokens, by the node's own edge
    inner = np.flatnonzero(large[1:]) + 1
    up, size = tree.parent[inner], tree.num_nodes
    saved_below = np.bincount(up, saved[inner], size)
    count_below = np.bincount(up, count[inner], size)
    opens: npt.NDArray[np.bool_] = (saved_below > saved) & (2 * count_below > count)
    return opens
