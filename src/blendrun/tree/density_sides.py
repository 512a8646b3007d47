"""Lay a tree out with its dense side first, and siblings of all densities in turn.

The two sides are what lies before and after one cut through the tree sorted by density. Inside a
side, siblings alternate between dense and sparse ones, so that runs of them are alike. Which child
comes first costs no sharing.
"""

import numba
import numpy as np

from blendrun.tree.annotate import Annotations, Float64
from blendrun.tree.build import arrange, topology_of
from blendrun.tree.density_order import sort_by_density
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree

_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly wherever one stops


def dense_side_first(tree: PrefixTree, priced: Annotations) -> tuple[PrefixTree, int]:
    """`tree` with its dense side first, and the number of requests on that side.

    Args:
        priced: of `tree`.
    """
    tree = sort_by_density(tree, priced)
    num_dense = _most_lean(tree, priced)
    side = np.ones(tree.num_nodes)  # has leaves on both
    side[tree.last_leaf <= num_dense] = 0.0
    side[tree.first_leaf >= num_dense] = 2.0
    topology, node_of = topology_of(tree)
    turn = _sibling_number(tree.parent) * _GOLDEN % 1.0
    rank: Float64 = np.empty(tree.num_nodes)
    rank[node_of] = side + turn
    return arrange(topology, rank), num_dense


def _most_lean(tree: PrefixTree, priced: Annotations) -> int:
    """Leaves before the cut that parts compute from KV reads best."""
    compute_s, memory_s = priced.request_compute_s, priced.request_memory_s
    lean = compute_s
    if np.isfinite(priced.root_density):
        lean = compute_s - priced.root_density * memory_s
    before = np.concatenate([[0.0], np.cumsum(lean[tree.leaf_order])])
    return int(np.argmax(before))


@numba.njit(cache=True)
def _sibling_number(parent: Int32) -> Int64:
    """Place of each node among the children of its parent, [K]; `parent` is in preorder."""
    number, seen = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.int64)
    for node in range(1, len(parent)):
        number[node] = seen[parent[node]]
        seen[parent[node]] += 1
    return number
