"""Strata of a job: subtrees whose output lengths are learned apart.

A stratum is a child of the root, or of a set-wide system prompt (a child of the root), with at
least 0.5 % of the requests. The rest pool with their parent. Where all prompts begin alike, the
end of that common beginning counts as the root.
"""

import numpy as np

from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree

MIN_FRAC = 0.005


def top_subtrees(tree: PrefixTree, min_frac: float = MIN_FRAC) -> tuple[Int32, Int32]:
    """The stratum of every request, int32 [N], and the node of every stratum, int32 [S]."""
    root = common_root(tree)
    large = tree.request_count >= min_frac * tree.num_requests
    large[ROOT : root + 1] = False
    large[tree.leaf_node] = False
    first = np.flatnonzero(large & (tree.parent == root))
    second = np.flatnonzero(large & np.isin(tree.parent, first))
    stratum = np.zeros(tree.num_requests, np.int32)
    nodes = np.array([root, *first, *second], np.int32)
    for number, node in enumerate(nodes[1:].tolist(), start=1):  # lower ones overwrite
        stratum[tree.leaf_order[tree.first_leaf[node] : tree.last_leaf[node]]] = number
    used, compact = np.unique(stratum, return_inverse=True)
    return compact.astype(np.int32), nodes[used]


def common_root(tree: PrefixTree) -> int:
    """Deepest node above all requests."""
    node = ROOT
    while (
        node + 1 < tree.num_nodes
        and tree.request_count[node + 1] == tree.num_requests
        and tree.num_requests > 1
    ):
        node += 1
    return node
