"""Divide a job among data-parallel ranks, each with the job's own mix. Knows seconds, no tokens."""

import heapq

import numpy as np

from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32


def partition(
    sequence: Int32, compute_s: Float64, memory_s: Float64, root_density: float, parts: int
) -> list[Int32]:
    """`parts` sub-sequences with nearly equal compute and equal KV reads.

    Requests at or above the root's density are cut into runs of equal seconds, so that a prefix
    is computed twice at most once per cut; the others go, longest first, to the rank that has
    least.

    Args:
        sequence: [N] requests in planned order.
        compute_s, memory_s: [N] by request number.
    """
    if parts == 1:
        return [sequence]
    with np.errstate(divide="ignore", invalid="ignore"):
        dense = compute_s[sequence] >= root_density * memory_s[sequence]
    seconds = np.maximum(compute_s, memory_s)[sequence]
    rank_of = np.zeros(len(sequence), np.int64)
    left = np.flatnonzero(dense)
    total = np.cumsum(seconds[left])
    if len(left) and total[-1] > 0:
        middle = (total - seconds[left] / 2) / total[-1]
        rank_of[left] = np.minimum(middle * parts, parts - 1)
    loads = [(0.0, rank) for rank in range(parts)]
    right = np.flatnonzero(~dense)
    for i in right[np.argsort(-seconds[right], kind="stable")]:
        load, rank = loads[0]
        rank_of[i] = rank
        heapq.heapreplace(loads, (load + float(seconds[i]), rank))
    return [sequence[rank_of == rank] for rank in range(parts)]
