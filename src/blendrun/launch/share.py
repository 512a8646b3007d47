"""Which unstarted requests go from one rank to another: one stretch of either side of the tree.

As in `schedule.partition`, so that prefixes stay together and what moves has the mix of the whole.
"""

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.launch.rest import NOTHING, Rest
from blendrun.schedule.cuts import tail
from blendrun.schedule.leaf_row import LeafRow
from blendrun.tree.annotate import annotate
from blendrun.tree.density_sides import dense_side_first
from blendrun.tree.prefix_tree import Int32, PrefixTree

_SLACK = 0.1  # of what moves, by which a cut may miss it to keep prefixes whole


def requests_to_move(
    tree: PrefixTree, unstarted: Int32, output_len: Int32, cost: CostModel, wanted_s: float
) -> Int32:
    """Those of `unstarted` that take about `wanted_s`, compute and KV reads perfectly mixed.

    At least one; where each takes longer, the one that takes least.

    Args:
        tree: of all N requests.
        unstarted: requests of one rank, at least one.
        output_len: int32[N] expected output tokens.
    """
    others = np.ones(tree.num_requests, np.bool_)
    others[unstarted] = False
    priced = annotate(tree, output_len, cost)
    row = LeafRow.of(*dense_side_first(tree, priced))
    row = row.without(np.flatnonzero(others).astype(np.int32))
    mixed = row.mixed(tree.prompt_len, output_len, cost)
    begin = tail(mixed, wanted_s, _SLACK * wanted_s)
    in_turn = row.requests[row.turns(mixed.dense_before)]
    if begin < len(in_turn):
        return in_turn[begin:]
    alone_s = cost.overlapped_s(priced.request_compute_s, priced.request_memory_s)[in_turn]
    shortest: Int32 = in_turn[[int(np.argmin(alone_s))]]
    return shortest


def sparse_ones(tree: PrefixTree, output_len: Int32, cost: CostModel) -> npt.NDArray[np.bool_]:
    """Which requests [N] have more KV reads for their compute than the whole job."""
    priced = annotate(tree, output_len, cost)
    compute_s, memory_s = priced.request_compute_s, priced.request_memory_s
    sparse: npt.NDArray[np.bool_] = compute_s * memory_s.sum() < compute_s.sum() * memory_s
    return sparse


def rest_of(tree: PrefixTree, requests: Int32, output_len: Int32, cost: CostModel) -> Rest:
    """What `requests` take, with their shares of prefixes that all others need, too."""
    if not len(requests):
        return NOTHING
    priced = annotate(tree, output_len, cost)
    compute_s = priced.request_compute_s[requests].sum()
    return Rest(float(compute_s), float(priced.request_memory_s[requests].sum()))


def seconds_of(tree: PrefixTree, requests: Int32, output_len: Int32, cost: CostModel) -> float:
    """Seconds of compute and KV reads perfectly mixed, likewise."""
    return rest_of(tree, requests, output_len, cost).seconds(cost)
