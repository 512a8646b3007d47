"""Where prompts of another job belong in a prefix tree. Knows tokens, not what they are for."""

from dataclasses import dataclass
from typing import NamedTuple

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
    trie = _Trie(tree.depth, children, start, offsets[example], tokens)
    return Matches(*_walk(trie, other_tokens, other_offsets))


def content_node(tree: PrefixTree) -> Int32:
    """The node where each request's prompt ends, int32 [N]: one for all equal prompts."""
    leaf = tree.leaf_node
    ends_above = (tree.depth[leaf] == tree.depth[tree.parent[leaf]]) & (leaf != ROOT)
    return np.where(ends_above, tree.parent[leaf], leaf).astype(np.int32)


class _Trie(NamedTuple):
    """A tree as the walk reads it."""

    depth: Int32  # [K]
    children: Int32  # [K - 1] of all nodes, by parent, in token order
    start: Int64  # [K + 1] where each node's children begin
    text: Int64  # [K] where in `tokens` a prompt begins that has the node's path
    tokens: Int32


@numba.njit(cache=True)
def _walk(trie: _Trie, tokens: Int32, offsets: Int64) -> tuple[Int32, npt.NDArray[np.bool_]]:
    num_prompts = len(offsets) - 1
    node, is_whole = np.zeros(num_prompts, np.int32), np.zeros(num_prompts, np.bool_)
    for i in range(num_prompts):
        at, end = offsets[i], offsets[i + 1]
        here = 0
        while True:
            position = at + trie.depth[here]
            if position == end:
                # a first child without tokens of its own, or no child: a prompt ends here
                first = trie.start[here]
                is_leaf = trie.start[here + 1] == first
                is_whole[i] = is_leaf or trie.depth[trie.children[first]] == trie.depth[here]
                break
            child = _child(trie, here, tokens[position])
            if child < 0:
                break
            mine = trie.text[child] + trie.depth[here]
            stop = trie.text[child] + trie.depth[child]
            while mine < stop and position < end and trie.tokens[mine] == tokens[position]:
                mine += 1
                position += 1
            if mine < stop:
                break
            here = child
        node[i] = here
    return node, is_whole


@numba.njit(cache=True)
def _child(trie: _Trie, node: int, token: int) -> int:
    """The child of `node` whose edge begins with `token`, or -1."""
    low, high = trie.start[node], trie.start[node + 1]
    while low < high:
        middle = (low + high) // 2
        if _first_token(trie, node, trie.children[middle]) < token:
            low = middle + 1
        else:
            high = middle
    if low == trie.start[node + 1] or _first_token(trie, node, trie.children[low]) != token:
        return -1
    return int(trie.children[low])


@numba.njit(cache=True)
def _first_token(trie: _Trie, node: int, child: int) -> int:
    """First token of a child's edge; -1 where it has none, which sorts before all others."""
    at = trie.depth[node]
    return int(trie.tokens[trie.text[child] + at]) if trie.depth[child] > at else -1
