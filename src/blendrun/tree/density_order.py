"""Sort the tree by density, and split off requests that sit far from where they belong.

Sort: the children of every node, densest first (paper section 5.2). Split: a subtree whose density
puts it on the other side of the root's than its top subtree is detached to the root; its prefix
is then computed once more. Detaching goes cheapest first and stops at the given share of the
saved prefill, so at least `keep_frac` of the sharing stays. Detached subtrees are children of the
root and never detached again, so it ends.
"""

from collections.abc import Callable

import numpy as np

from blendrun.tree.annotate import Annotations, Float64
from blendrun.tree.build import Topology, arrange, topology_of
from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree

Annotate = Callable[[PrefixTree], Annotations]


def sort_by_density(tree: PrefixTree, annotations: Annotations) -> PrefixTree:
    """The same tree with the children of every node in order of falling density."""
    topology, node_of = topology_of(tree)
    rank = np.empty(tree.num_nodes, np.float64)
    rank[node_of] = -annotations.node_density
    return arrange(topology, rank)


def split_by_density(tree: PrefixTree, annotate: Annotate, keep_frac: float) -> PrefixTree:
    """Sort, split and sort again, keeping at least `keep_frac` of the shared prompt tokens.

    Args:
        tree: built tree; a request can be detached once.
        annotate: prices a tree with the same requests.
        keep_frac: 0 to 1, of `num_prompt_tokens - num_unique_tokens`.
    """
    tree = sort_by_density(tree, annotate(tree))
    shared = tree.num_prompt_tokens - tree.num_unique_tokens
    budget = int((1 - keep_frac) * shared)
    chosen = _misplaced(tree, annotate(tree), budget)
    if len(chosen) == 0:
        return tree
    detached = _detach(tree, chosen)
    return sort_by_density(detached, annotate(detached))


def _misplaced(tree: PrefixTree, annotations: Annotations, budget: int) -> Int32:
    """Nodes to detach: highest ones on the wrong side, cheapest first, up to `budget` tokens."""
    dense = annotations.node_density >= annotations.root_density
    top = _top_subtree(tree)
    wrong = (dense != dense[top]) & (np.arange(tree.num_nodes) != ROOT) & (tree.parent != ROOT)
    highest = wrong & ~wrong[tree.parent]
    nodes = np.flatnonzero(highest).astype(np.int32)
    cost = tree.edge_start[nodes]  # the prefix above is computed once more
    # seconds that reach their own side for each token paid
    gain = np.abs(_lean(annotations)[nodes]) / np.maximum(cost, 1)
    nodes = nodes[np.argsort(-gain, kind="stable")]
    paid = np.cumsum(tree.edge_start[nodes], dtype=np.int64)
    return nodes[paid <= budget]


def _lean(annotations: Annotations) -> Float64:
    """Compute seconds of each node above (or below) its part at the root's density."""
    if not np.isfinite(annotations.root_density):
        return np.zeros_like(annotations.compute_s)
    return annotations.compute_s - annotations.root_density * annotations.memory_s


def _top_subtree(tree: PrefixTree) -> Int32:
    """Child of the root above each node; the root itself for the root."""
    is_top = tree.parent == ROOT
    return np.maximum.accumulate(np.where(is_top, np.arange(tree.num_nodes), 0)).astype(np.int32)


def _detach(tree: PrefixTree, nodes: Int32) -> PrefixTree:
    """Make `nodes` children of the root and drop the inner nodes that this empties."""
    topology, node_of = topology_of(tree)
    parent, root = topology.parent.copy(), len(topology.parent) - 1
    parent[node_of[nodes]] = root
    num_children = np.bincount(np.delete(parent, root), minlength=len(parent))
    alive = np.ones(len(parent), bool)
    # children first: `tree` is in preorder, so its reverse goes bottom-up
    for node in node_of[::-1][:-1]:
        if node >= tree.num_requests and num_children[node] == 0:
            alive[node] = False
            num_children[parent[node]] -= 1
    new_id = np.cumsum(alive, dtype=np.int32) - 1
    kept = Topology(new_id[parent[alive]].astype(np.int32), topology.depth[alive])
    return arrange(kept, np.arange(len(kept.parent), dtype=np.float64))
