"""The optimum of a job: its tree and lengths against the machine."""

import numba
import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.cost.optimum import Optimum, min_steps, optimum
from blendrun.tree.annotate import Annotations, Float64
from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree


def job_optimum(
    tree: PrefixTree,
    output_len: Int32,
    priced: Annotations,
    cost: CostModel,
    ranks: int = 1,
    kv_tokens: int | None = None,
) -> Optimum:
    """The bound of all requests, in rank-seconds: `ranks` ranks divide it, and add their memory.

    Args:
        tree: over N requests, not split.
        output_len: int32 [N].
        priced: `annotate(tree, output_len, cost)`.
        kv_tokens: KV memory of one rank; None: what the hardware leaves.

    Raises:
        CapacityError: there is no memory for KV pages.
    """
    whole_s = float(cost.compute_s(tree.prompt_len, output_len).sum())
    shared_s, memory_s = float(priced.compute_s[ROOT]), float(priced.memory_s[ROOT])
    own_len = tree.edge_len[tree.leaf_node]
    capacity = ranks * (cost.kv_capacity_tokens if kv_tokens is None else kv_tokens)
    steps = ranks * min_steps(own_len, output_len, capacity, cost)
    once_s = once_memory_s(tree, output_len, cost)
    return optimum(whole_s, memory_s, steps, cost, whole_s - shared_s, once_s)


def once_memory_s(tree: PrefixTree, output_len: Int32, cost: CostModel) -> float:
    """The least KV-read time of attention that reads a shared prefix once per step for all.

    Then a segment of the tree is read in as many steps as the longest answer below it takes, if
    all the others run at the same time; what requests write themselves, nobody shares.
    """
    steps = cost.num_decodes(output_len)
    most = _most_of_subtree(tree.parent, tree.leaf_node, steps)
    shared_tokens = float(tree.edge_len.astype(np.float64) @ most)
    return shared_tokens * cost.context_s + float(cost.memory_s(0, output_len).sum())


@numba.njit(cache=True)
def _most_of_subtree(parent: Int32, leaf_node: Int32, per_request: Float64) -> Float64:
    """The largest value of the requests below each node, [K]."""
    most = np.zeros(len(parent))
    for request in range(len(leaf_node)):
        node = leaf_node[request]
        most[node] = max(most[node], per_request[request])
    for node in range(len(parent) - 1, 0, -1):
        most[parent[node]] = max(most[parent[node]], most[node])
    return most
