"""Keep a prefix tree and its densities in one Parquet file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.errors import PlanError
from blendrun.tree.annotate import Annotations
from blendrun.tree.prefix_tree import PrefixTree

PLAN_AGAIN = "plan again with blendrun plan"
_STRUCTURE = ("parent", "subtree_end", "depth", "first_leaf", "last_leaf")


def write_tree(path: Path, tree: PrefixTree, annotations: Annotations) -> None:
    """Write one row per node, in preorder; the leaf rows carry their request, others -1."""
    request = np.full(tree.num_nodes, -1, np.int32)
    request[tree.leaf_node] = np.arange(tree.num_requests)
    columns = {name: getattr(tree, name) for name in _STRUCTURE} | {
        "request": request,
        "unique_tokens": annotations.unique_tokens,
        "compute_s": annotations.compute_s,
        "memory_s": annotations.memory_s,
        "density": annotations.node_density,
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_tree(path: Path) -> PrefixTree:
    """The tree that `write_tree` wrote, checked.

    Raises:
        PlanError: the file is missing, is no tree, or is broken.
    """
    try:
        table = pq.read_table(path, columns=[*_STRUCTURE, "request"])
    except (OSError, pa.ArrowException) as error:
        raise PlanError(f"cannot read the prefix tree {path}: {error}", PLAN_AGAIN) from error
    columns = {name: table[name].to_numpy() for name in table.column_names}
    request = columns.pop("request")
    nodes = np.flatnonzero(request >= 0)
    leaf_node = np.empty(len(nodes), np.int32)
    try:
        leaf_node[request[nodes]] = nodes
        tree = PrefixTree(**columns, leaf_order=request[nodes], leaf_node=leaf_node)
        tree.check_integrity()
    except IndexError as error:  # a column points outside of the tree
        raise PlanError(f"the prefix tree {path} is broken: {error}", PLAN_AGAIN) from error
    return tree
