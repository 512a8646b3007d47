"""Merge neighbours of a sequence into units, for the scan from both ends (paper, A.2).

Single requests differ too much to steer by. A unit is a stretch of the sequence with one part in
128 of the job's compute and KV reads. Only figures are merged, not prefixes: it costs no sharing.
"""

from typing import Any

import numpy as np

from blendrun.schedule.step.state import MAX_DENSITY, UNIT
from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32

_UNITS = 128


def merged(compute_s: Float64, memory_s: Float64, own_len: Int32) -> Any:
    """The unit of each of n requests in sequence, [n] of UNIT.

    Args:
        compute_s, memory_s: [n] seconds, of which `compute_s` is never 0.
        own_len: [n] prompt tokens that no other request shares.
    """
    share = sum(part / max(part.sum(), 1e-300) for part in (compute_s, memory_s))
    middle = np.cumsum(share) - share / 2
    unit = (middle * _UNITS / max(share.sum(), 1e-300)).astype(np.int64)

    def total(column: Float64 | Int32) -> Float64:
        sums: Float64 = np.bincount(unit, column)[unit]
        return sums

    compute_s = total(compute_s)
    memory_s = np.maximum(total(memory_s), compute_s / MAX_DENSITY)
    rows = np.empty(len(unit), UNIT).view(np.recarray)
    rows["density"] = compute_s / memory_s
    rows["prefill_rate"] = total(own_len) / memory_s
    return rows
