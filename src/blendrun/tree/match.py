"""Where prompts of another job belong in a prefix tree. Knows tokens, not what they are for."""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import ROOT, Int32, Int64, PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Of M prompts: the deepest node of the tree whose whole path each begins with."""

    node: Int32  # [M]
    is_whole: npt.NDArray[np.bool_]  # [M] the prompt ends there: it is one of the tree's prompts


def match_prompts(
    tree: PrefixTree, tokens: Int32, offsets: Int64, other_tokens: Int32, other_offsets: Int64
) -> Matches:
    """Walks each other prompt down `tree`, whose children are in token order.

    Args:
        tokens, offsets: prompts of the tree, flat int32 and int64 [N + 1].
        other_tokens, other_offsets: M prompts likewise.
    """
    children = np.argsort(tree.parent[1:], kind="stable").astype(np.int32) + np.int32(1)
    start = np.searchsorted(tree.parent[children], np.arange(tree.num_nodes + 1))
    example = tree.leaf_order[np.minimum(tree.first_leaf, max(tree.num_requests - 1, 0))]
    node, is_whole = _walk(
        tree.depth, children, start, example, tokens, offsets, other_tokens, other_offsets
    )
    return Matches(node, is_whole)


def content_node(tree: PrefixTree) -> Int32:
    """The node where each request's prompt ends, int32 [N]: one for all equal prompts."""
    leaf = tree.leaf_node
    ends_above = (tree.depth[leaf] == tree.depth[tree.parent[leaf]]) & (leaf != ROOT)
    return np.where(ends_above, tree.parent[leaf], leaf).astype(np.int32)


@numba.njit(cache=True)
def _walk(
    depth: Int32,
    children: Int32,
    start: Int64,
    example: Int32,
    tokens: Int32,
    offsets: Int64,
    other_tokens: Int32,
    other_offsets: Int64,
) -> tuple[Int32, npt.NDArray[np.bool_]]:
    num_prompts = len(other_offsets) - 1
    node, is_whole = np.zeros(num_prompts, np.int32), np.zeros(num_prompts, np.bool_)
    for i in range(num_prompts):
        at, end = other_offsets[i], other_offsets[i + 1]
        here = 0
        while True:
            position = at + depth[here]
            # a first child without tokens of its own, or no child at all: a prompt ends here
            first = start[here]
            leaf = start[here + 1] == first
            ends = leaf or depth[children[first]] == depth[here]
            if position == end:
                is_whole[i] = ends
                break
            child = _child(
                depth, children, start, example, tokens, offsets, here, other_tokens[position]
            )
            if child < 0:
                break
            mine = offsets[example[child]] + depth[here]
            stop = offsets[example[child]] + depth[child]
            while mine < stop and position < end and tokens[mine] == other_tokens[position]:
                mine += 1
                position += 1
            if mine < stop:
                break
            here = child
        node[i] = here
    return node, is_whole


@numba.njit(cache=True)
def _child(
    depth: Int32,
    children: Int32,
    start: Int64,
    example: Int32,
    tokens: Int32,
    offsets: Int64,
    node: int,
    token: int,
) -> int:
    """The child of `node` whose edge begins with `token`, or -1."""
    low, high, at = start[node], start[node + 1], depth[node]
    while low < high:
        middle = (low + high) // 2
        child = children[middle]
        # an edge without tokens sorts before all others
        first = tokens[offsets[example[child]] + at] if depth[child] > at else -1
        if first < token:
            low = middle + 1
        else:
            high = middle
    if low == start[node + 1]:
        return -1
    child = children[low]
    if depth[child] > at and tokens[offsets[example[child]] + at] == token:
        return int(child)
    return -1
