"""What each request and each subtree costs, with every shared prefix computed once.

The compute of an edge is split evenly among the requests below it. So costs add up: a subtree's
seconds are the sum of its requests', the root's are `(1 - s) * T_comp` and `T_mem` of the paper,
and the density of any node is one ratio (paper section 3.3). Knows no order.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Annotations:
    """Seconds on the planned hardware; `density` is compute over memory, above 1 = compute-bound.

    A request without any KV read (one output token) has density infinity.
    """

    request_compute_s: Float64  # [N] with its share of shared prefixes
    request_memory_s: Float64  # [N]
    compute_s: Float64  # [K]
    memory_s: Float64  # [K]
    unique_tokens: npt.NDArray[np.int64]  # [K] prompt tokens on the edges of the subtree
    prefix_s: Float64  # [K] compute of all tokens from the root to the end of the edge, once

    @property
    def request_density(self) -> Float64:
        return density(self.request_compute_s, self.request_memory_s)

    @property
    def node_density(self) -> Float64:
        return density(self.compute_s, self.memory_s)

    @property
    def root_density(self) -> float:
        return float(density(self.compute_s[:1], self.memory_s[:1])[ROOT])


def density(compute_s: Float64, memory_s: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(memory_s > 0, compute_s / memory_s, np.inf)


def annotate(tree: PrefixTree, output_len: Int32, cost: CostModel) -> Annotations:
    """Costs of all requests and subtrees.

    Args:
        tree: K nodes over N requests.
        output_len: [N] expected output tokens.
        cost: prices in seconds.
    """
    prompt_len = tree.prompt_len
    edge_s = cost.prefill_s(tree.edge_start, tree.depth)
    share_s = sum_to_leaf(tree.parent, edge_s / np.maximum(tree.request_count, 1))
    request_compute_s = (
        share_s[tree.leaf_node]
        + cost.head_s(np.ones(tree.num_requests))
        + cost.decode_compute_s(prompt_len, output_len)
    )
    request_memory_s = cost.memory_s(prompt_len, output_len)
    below = np.zeros(tree.num_nodes + 1, np.int64)
    np.cumsum(tree.edge_len, out=below[1:])
    return Annotations(
        request_compute_s,
        request_memory_s,
        _sum_over_leaves(tree, request_compute_s),
        _sum_over_leaves(tree, request_memory_s),
        below[tree.subtree_end] - below[:-1],
        cost.prefill_s(0, tree.depth),
    )


def _sum_over_leaves(tree: PrefixTree, per_request: Float64) -> Float64:
    """Sum of a request column over each subtree, [K]."""
    running = np.concatenate([[0.0], np.cumsum(per_request[tree.leaf_order])])
    sums: Float64 = running[tree.last_leaf] - running[tree.first_leaf]
    return sums


@numba.njit(cache=True)
def sum_to_leaf(parent: Int32, per_node: Float64) -> Float64:
    """Sum of `per_node` over the path from the root to each node, [K]."""
    total = per_node.copy()
    for node in range(1, len(parent)):
        total[node] += total[parent[node]]
    return total
