"""Keep a prefix tree and its densities in one Parquet file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.errors import PlanError
from blendrun.tree.annotate import Annotations, Float64
from blendrun.tree.prefix_tree import PrefixTree

PLAN_AGAIN = "plan again with blendrun plan"
ROW_GROUP = 2**16  # rows that the writer holds encoded at once
_STRUCTURE = ("parent", "subtree_end", "depth", "first_leaf", "last_leaf")


@dataclass(frozen=True, slots=True)
class NodePrices:
    """What the planner wrote of each subtree; sums over its requests."""

    unique_tokens: npt.NDArray[np.int64]  # [K] prompt tokens on the edges of the subtree
    compute_s: Float64  # [K] on the planned hardware, prefixes shared
    memory_s: Float64  # [K]


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
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=ROW_GROUP)


def read_tree(path: Path) -> PrefixTree:
    """The tree that `write_tree` wrote, checked.

    Raises:
        PlanError: the file is missing, is no tree, or is broken.
    """
    columns = _read(path, (*_STRUCTURE, "request"))
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


def read_prices(path: Path) -> NodePrices:
    """The prices of every node of the tree in `path`.

    Raises:
        PlanError: the file is missing or is no tree.
    """
    return NodePrices(**_read(path, ("unique_tokens", "compute_s", "memory_s")))


def _read(path: Path, names: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    try:
        table = pq.read_table(path, columns=list(names))
        return {name: table[name].to_numpy() for name in names}
    except (OSError, KeyError, pa.ArrowException) as error:
        raise PlanError(f"cannot read the prefix tree {path}: {error}", PLAN_AGAIN) from error
