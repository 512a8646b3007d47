"""Cut a job into parts of equal time, each with the job's mix. Compiled.

The two sides of a row are first merged into one sequence whose every stretch has about the same
mix of compute and KV reads. A part is a stretch of it: one run of either side.
"""

from typing import NamedTuple

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int64

SLACK = 0.0025  # of a part's time, by which a cut may move to where less prefix is repeated
_PASSES = 3  # to find the mean time, which depends on the cuts through repeated prefixes
_HALVINGS = 50


class MixedRow(NamedTuple):
    """n leaves, the dense side before the sparse one, and the sequence that mixes the two.

    Time of a part is the norm of its compute and memory seconds with `exponent`.
    """

    dense_before: Int64  # [n + 1] leaves of the dense side among the first k of the sequence
    added_s: Float64  # [n + 1] running sum of the compute that a leaf adds to the one before it
    repeat_s: Float64  # [n] compute of what it shares with the one before: new where a run begins
    common_s: Float64  # [n] least `repeat_s` from here to the border between the sides
    memory_s: Float64  # [n + 1] running sum over the sequence
    exponent: float


@compiled
def mix(lean_s: Float64, num_dense: int) -> Int64:
    """The sequence that mixes both sides: leaves of the dense side among the first k, [n + 1].

    Args:
        lean_s: [n] compute of a leaf beyond its part at the job's ratio. The sequence goes on
            with the side that the sum so far asks for.
    """
    n = len(lean_s)
    dense_before = np.zeros(n + 1, np.int64)
    dense, sparse, total = 0, num_dense, 0.0
    for k in range(n):
        if dense < num_dense and (total <= 0 or sparse == n):
            total += lean_s[dense]
            dense += 1
        else:
            total += lean_s[sparse]
            sparse += 1
        dense_before[k + 1] = dense
    return dense_before


@compiled_part
def _norm(one: float, other: float, exponent: float) -> float:
    longer, shorter = max(one, other), min(one, other)
    if exponent == np.inf or longer <= 0:
        return longer
    factor: float = (1 + (shorter / longer) ** exponent) ** (1 / exponent)
    return longer * factor


@compiled_part
def _compute_s(row: MixedRow, begin: int, end: int) -> float:
    """Compute of the part [begin, end) of the sequence, each prefix in it once."""
    num_dense = row.dense_before[len(row.repeat_s)]
    dense, dense_end = row.dense_before[begin], row.dense_before[end]
    sparse, sparse_end = num_dense + begin - dense, num_dense + end - dense_end
    total: float = row.added_s[dense_end] - row.added_s[dense]
    total += row.added_s[sparse_end] - row.added_s[sparse]
    if dense < dense_end:
        total += row.repeat_s[dense]
    if sparse < sparse_end:
        total += row.repeat_s[sparse]
        if dense < dense_end:  # both runs have what all leaves between them share
            common = row.common_s[sparse]
            if dense_end < num_dense:
                common = min(common, row.common_s[dense_end])
            total -= common
    return total


@compiled_part
def _seconds(row: MixedRow, begin: int, end: int) -> float:
    memory_s = row.memory_s[end] - row.memory_s[begin]
    time_s: float = _norm(_compute_s(row, begin, end), memory_s, row.exponent)
    return time_s


@compiled_part
def _last_end(row: MixedRow, begin: int, limit_s: float) -> int:
    """End of the longest part from `begin` on within `limit_s`."""
    low, high = begin, len(row.repeat_s) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _seconds(row, begin, middle) <= limit_s:
            low = middle
        else:
            high = middle
    return low


@compiled_part
def _first_begin(row: MixedRow, end: int, limit_s: float) -> int:
    """Begin of the longest part up to `end` within `limit_s`."""
    low, high = -1, end
    while high - low > 1:
        middle = (low + high) // 2
        if _seconds(row, middle, end) <= limit_s:
            high = middle
        else:
            low = middle
    return high


@compiled
def _least_limit(row: MixedRow, parts: int) -> float:
    """The least time within which `parts` parts can do everything."""
    n = len(row.repeat_s)
    low, high = 0.0, _seconds(row, 0, n)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        end = 0
        for _ in range(parts):
            end = _last_end(row, end, middle)
        if end == n:
            high = middle
        else:
            low = middle
    return high


@compiled
def cut(row: MixedRow, parts: int) -> tuple[Int64, Float64]:
    """Where each part begins, and the end: [parts + 1] places in the sequence; compute of each.

    No part takes longer than the least limit and its slack, and each is as near to the mean as
    its leaves allow. Within the slack a cut goes where it repeats least.
    """
    n = len(row.repeat_s)
    limit_s = _least_limit(row, parts) * (1 + 2 * SLACK)
    earliest = np.full(parts + 1, n)  # from which the parts that follow are enough
    for part in range(parts - 1, -1, -1):
        earliest[part] = _first_begin(row, earliest[part + 1], limit_s)
    cuts = np.zeros(parts + 1, np.int64)
    cuts[parts] = n
    mean_s = limit_s / (1 + 2 * SLACK)
    for _ in range(_PASSES):
        done_s = 0.0
        for part in range(parts - 1):
            low = max(earliest[part + 1], cuts[part])
            high = max(_last_end(row, cuts[part], limit_s), low)
            wanted = mean_s * (part + 1) - done_s
            cuts[part + 1] = _best_end(row, cuts[part], wanted, SLACK * mean_s, low, high)
            done_s += _seconds(row, cuts[part], cuts[part + 1])
        mean_s = (done_s + _seconds(row, cuts[parts - 1], n)) / parts
    compute = np.zeros(parts)
    for part in range(parts):
        compute[part] = _compute_s(row, cuts[part], cuts[part + 1])
    return cuts, compute


@compiled_part
def _best_end(
    row: MixedRow, begin: int, wanted_s: float, slack_s: float, low: int, high: int
) -> int:
    """End in [low, high] of a part of `wanted_s`; within the slack, where least is repeated."""
    first = _last_end(row, begin, wanted_s - slack_s) + 1
    last = _last_end(row, begin, wanted_s + slack_s)
    first, last = min(max(first, low), high), min(max(last, low), high)
    if first > last:  # a leaf is longer than the slack
        nearer = abs(_seconds(row, begin, first) - wanted_s) < abs(
            _seconds(row, begin, last) - wanted_s
        )
        return first if nearer else last
    best, least = first, np.inf
    for end in range(first, last + 1):
        repeated = _repeated_s(row, end)
        if repeated < least:
            best, least = end, repeated
    return best


@compiled_part
def _repeated_s(row: MixedRow, place: int) -> float:
    """Compute of the prefixes that a cut at `place` repeats."""
    n = len(row.repeat_s)
    num_dense = row.dense_before[n]
    dense = row.dense_before[place]
    sparse = num_dense + place - dense
    repeated = row.repeat_s[dense] if dense < num_dense else 0.0
    return repeated + (row.repeat_s[sparse] if sparse < n else 0.0)


@compiled
def tail(row: MixedRow, wanted_s: float, slack_s: float) -> int:
    """Where the last part of the sequence begins that takes `wanted_s`.

    Within `slack_s` it begins where least is repeated; the end of the sequence where not one leaf
    is as short.
    """
    n = len(row.repeat_s)
    first = _first_begin(row, n, wanted_s + slack_s)
    last = _first_begin(row, n, max(wanted_s - slack_s, 0.0))
    best, least = last, np.inf
    for begin in range(first, min(last, n - 1) + 1):
        repeated = _repeated_s(row, begin)
        if repeated < least:
            best, least = begin, repeated
    return best
