"""Build a prefix tree from sorted prompts, and lay nodes out in preorder.

Knows tokens and parents only; which child comes first is the caller's `rank`.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree
from blendrun.tree.token_sort import sort_prompts


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree in any node order: the first N nodes are the leaves of requests 0 to N - 1.

    The root is the last node and its own parent.
    """

    parent: Int32  # [K]
    depth: Int32  # [K] tokens


def build_tree(tokens: Int32, offsets: Int64) -> PrefixTree:
    """Compact trie over N prompts, children in token order (paper section 5.1).

    Args:
        tokens: int32, all prompts, flat.
        offsets: int64[N + 1] where each prompt starts.
    """
    order, shared_len = sort_prompts(tokens, offsets)
    prompt_len = np.diff(offsets).astype(np.int32)
    topology = Topology(*_link(order, shared_len, prompt_len))
    rank = np.empty(len(topology.parent), np.float64)
    rank[order] = np.arange(len(order))
    rank[len(order) :] = _first_below(topology, rank)
    return arrange(topology, rank)


def arrange(topology: Topology, rank: npt.NDArray[np.float64]) -> PrefixTree:
    """Lay `topology` out in preorder, the children of a node by ascending `rank` [K]."""
    by_rank = np.argsort(rank, kind="stable").astype(np.int32)
    children, child_start = _children(topology.parent, by_rank)
    columns = _preorder(
        topology.parent, topology.depth, children, child_start, _num_leaves(topology)
    )
    return PrefixTree(*columns)


def topology_of(tree: PrefixTree) -> tuple[Topology, Int32]:
    """The topology of `tree`, and for each of the tree's nodes its node there, int32[K]."""
    is_inner = np.ones(tree.num_nodes, bool)
    is_inner[tree.leaf_node] = False
    inner = np.flatnonzero(is_inner)[::-1]  # the root ends up last
    node_of = np.empty(tree.num_nodes, np.int32)
    node_of[tree.leaf_node] = np.arange(tree.num_requests)
    node_of[inner] = tree.num_requests + np.arange(len(inner))
    parent, depth = np.empty_like(tree.parent), np.empty_like(tree.depth)
    parent[node_of] = node_of[tree.parent]
    depth[node_of] = tree.depth
    return Topology(parent, depth), node_of


def _num_leaves(topology: Topology) -> int:
    has_child = np.zeros(len(topology.parent), bool)
    has_child[topology.parent] = True  # the root, its own parent, counts as inner
    return int((~has_child).sum())


def _first_below(topology: Topology, leaf_rank: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Smallest rank of a leaf below each inner node."""
    lowest: npt.NDArray[np.float64] = _min_below(topology.parent, leaf_rank, _num_leaves(topology))
    return lowest


@numba.njit(cache=True)
def _min_below(
    parent: Int32, leaf_rank: npt.NDArray[np.float64], num_requests: int
) -> npt.NDArray[np.float64]:
    lowest = np.full(len(parent), np.inf)
    for leaf in range(num_requests):
        node, rank = leaf, leaf_rank[leaf]
        while rank < lowest[node]:  # an ancestor that is lower already ends the walk
            lowest[node] = rank
            node = parent[node]
    return lowest[num_requests:]


@numba.njit(cache=True)
def _link(order: Int32, shared_len: Int32, prompt_len: Int32) -> tuple[Int32, Int32]:
    """Parents and depths of the compact trie, from the shared prefix of sorted neighbours."""
    n = len(order)
    parent = np.empty(2 * n + 1, np.int32)
    depth = np.empty(2 * n + 1, np.int32)
    depth[:n] = prompt_len
    root = 2 * n
    depth[root] = 0
    open_nodes = np.empty(n + 1, np.int32)  # the path of inner nodes above the last leaf
    open_nodes[0] = root
    top, num_inner = 0, 0
    for i in range(1, n + 1):
        node = order[i - 1]
        shared = shared_len[i] if i < n else 0
        while depth[open_nodes[top]] > shared:
            parent[node] = open_nodes[top]
            node = open_nodes[top]
            top -= 1
        if depth[open_nodes[top]] < shared:
            inner = n + num_inner
            num_inner += 1
            depth[inner] = shared
            top += 1
            open_nodes[top] = inner
        parent[node] = open_nodes[top]
    # the root moves next to the inner nodes that came to be
    last = n + num_inner
    depth[last] = 0
    for v in range(last):
        if parent[v] == root:
            parent[v] = last
    parent[last] = last
    return parent[: last + 1].copy(), depth[: last + 1].copy()


@numba.njit(cache=True)
def _children(parent: Int32, by_rank: Int32) -> tuple[Int32, Int64]:
    """All children, parent by parent in the order of `by_rank`, and where each parent's begin."""
    root = len(parent) - 1
    child_start = np.zeros(len(parent) + 1, np.int64)
    for node in range(root):
        child_start[parent[node] + 1] += 1
    for node in range(len(parent)):
        child_start[node + 1] += child_start[node]
    free = child_start[:-1].copy()
    children = np.empty(root, np.int32)
    for node in by_rank:
        if node != root:
            children[free[parent[node]]] = node
            free[parent[node]] += 1
    return children, child_start


@numba.njit(cache=True)
def _preorder(
    parent: Int32, depth: Int32, children: Int32, child_start: Int64, num_requests: int
) -> tuple[Int32, Int32, Int32, Int32, Int32, Int32, Int32]:
    k = len(parent)
    new_parent, new_depth = np.empty(k, np.int32), np.empty(k, np.int32)
    subtree_end = np.empty(k, np.int32)
    first_leaf, last_leaf = np.empty(k, np.int32), np.empty(k, np.int32)
    leaf_order, leaf_node = np.empty(num_requests, np.int32), np.empty(num_requests, np.int32)
    stack, stack_parent = np.empty(k, np.int32), np.empty(k, np.int32)
    stack[0], stack_parent[0] = k - 1, 0
    size, num_leaves = 1, 0
    for new in range(k):
        size -= 1
        old = stack[size]
        new_parent[new] = stack_parent[size]
        new_depth[new] = depth[old]
        subtree_end[new] = new + 1
        first_leaf[new] = num_leaves
        if old < num_requests:
            leaf_order[num_leaves], leaf_node[old] = old, new
            num_leaves += 1
        last_leaf[new] = num_leaves
        for c in range(child_start[old + 1] - 1, child_start[old] - 1, -1):
            stack[size], stack_parent[size] = children[c], new
            size += 1
    for new in range(k - 1, 0, -1):
        up = new_parent[new]
        subtree_end[up] = max(subtree_end[up], subtree_end[new])
        last_leaf[up] = max(last_leaf[up], last_leaf[new])
    return new_parent, subtree_end, new_depth, first_leaf, last_leaf, leaf_order, leaf_node
