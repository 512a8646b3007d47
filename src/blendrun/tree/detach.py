"""Move runs of siblings up in a tree, each with a copy of the prefix that it leaves."""

import numba
import numpy as np
import numpy.typing as npt

from blendrun.tree.build import Topology, arrange, topology_of
from blendrun.tree.misplaced import Runs
from blendrun.tree.prefix_tree import Int32, PrefixTree


def detach(tree: PrefixTree, runs: Runs) -> PrefixTree:
    """The tree in which each run hangs below its goal; nodes that this empties are gone."""
    topology, node_of = topology_of(tree)
    root, num_nodes = tree.num_nodes - 1, tree.num_nodes
    # a single member needs no copy: its own edge grows by the prefix
    copied = np.bincount(runs.run, minlength=len(runs)) > 1
    hangs_from = np.where(copied, num_nodes - 1 + np.cumsum(copied), node_of[runs.goal])
    parent = np.concatenate([topology.parent, node_of[runs.goal[copied]]])
    depth = np.concatenate([topology.depth, tree.depth[runs.parent[copied]]])
    parent[node_of[runs.member]] = hangs_from[runs.run]
    kept = _not_emptied(parent, root, tree.num_requests)
    # leaves first, the root last
    kept[root] = False
    new_id = np.cumsum(kept, dtype=np.int32) - 1
    new_id[root] = kept.sum()
    kept[root] = True
    order = np.argsort(new_id[kept], kind="stable")
    moved = Topology(new_id[parent[kept]][order], depth[kept][order])
    return arrange(moved, np.arange(len(order), dtype=np.float64))


@numba.njit(cache=True)
def _not_emptied(parent: Int32, root: int, num_requests: int) -> npt.NDArray[np.bool_]:
    """Nodes that have a request below them; the first `num_requests` are the requests."""
    num_children = np.zeros(len(parent), np.int64)
    for node in range(len(parent)):
        num_children[parent[node]] += 1
    kept = np.ones(len(parent), np.bool_)
    for start in range(num_requests, len(parent)):
        node = start
        while kept[node] and num_children[node] == 0 and node != root:
            kept[node] = False
            node = parent[node]
            num_children[node] -= 1
    return kept
