"""Sort token sequences and measure what neighbours share.

Multi-key quicksort (Bentley and Sedgewick, SODA 1997) that first skips what a whole group has in
common, so that a long shared prefix is read once per request and not once per partition.
"""

import numba
import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32, Int64


def sort_prompts(tokens: Int32, offsets: Int64) -> tuple[Int32, Int32]:
    """Lexicographic order of N prompts and the prefix each shares with the one before it.

    Args:
        tokens: all prompts, flat.
        offsets: [N + 1] where each prompt starts in `tokens`.

    Returns:
        order int32[N] (equal prompts by index) and shared_len int32[N] in tokens, in that order,
        0 for the first.
    """
    order = np.arange(len(offsets) - 1, dtype=np.int32)
    _sort(tokens, offsets, order)
    return order, _shared_with_previous(tokens, offsets, order)


@numba.njit(cache=True)
def _token_at(tokens: Int32, offsets: Int64, request: int, depth: int) -> int:
    """Token of a prompt at `depth`; -1 past its end, so that a prefix sorts before the longer."""
    at = offsets[request] + depth
    return int(tokens[at]) if at < offsets[request + 1] else -1


@numba.njit(cache=True)
def _shared_len(tokens: Int32, offsets: Int64, a: int, b: int, start: int, limit: int) -> int:
    """Tokens that prompts a and b share, known to be at least `start`; stops at `limit`."""
    limit = min(limit, offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b])
    depth = int(start)
    while depth < limit and tokens[offsets[a] + depth] == tokens[offsets[b] + depth]:
        depth += 1
    return depth


@numba.njit(cache=True)
def _group_shared_len(
    tokens: Int32, offsets: Int64, order: Int32, low: int, high: int, depth: int
) -> int:
    first = order[low]
    shared = int(offsets[first + 1] - offsets[first])
    for i in range(low + 1, high):
        shared = _shared_len(tokens, offsets, first, order[i], depth, shared)
        if shared == depth:
            break
    return shared


@numba.njit(cache=True)
def _partition(
    tokens: Int32, offsets: Int64, order: Int32, low: int, high: int, depth: int
) -> tuple[int, int, int]:
    """Put order[low:high] below, at and above a pivot token at `depth`; lt, gt and the pivot."""
    a = _token_at(tokens, offsets, order[low], depth)
    b = _token_at(tokens, offsets, order[(low + high) // 2], depth)
    c = _token_at(tokens, offsets, order[high - 1], depth)
    pivot = max(min(a, b), min(max(a, b), c))
    lt, i, gt = low, low, high
    while i < gt:
        token = _token_at(tokens, offsets, order[i], depth)
        if token < pivot:
            order[lt], order[i] = order[i], order[lt]
            lt += 1
            i += 1
        elif token > pivot:
            gt -= 1
            order[i], order[gt] = order[gt], order[i]
        else:
            i += 1
    return lt, gt, pivot


@numba.njit(cache=True)
def _sort(tokens: Int32, offsets: Int64, order: Int32) -> None:
    stack = [(0, len(order), 0)]
    while len(stack) > 0:
        low, high, depth = stack.pop()
        if high - low < 2:
            continue
        depth = _group_shared_len(tokens, offsets, order, low, high, depth)
        lt, gt, pivot = _partition(tokens, offsets, order, low, high, depth)
        stack.append((low, lt, depth))
        stack.append((gt, high, depth))
        if pivot == -1:  # all ended here: equal prompts
            order[lt:gt].sort()
        else:
            stack.append((lt, gt, depth + 1))


@numba.njit(cache=True)
def _shared_with_previous(tokens: Int32, offsets: Int64, order: Int32) -> npt.NDArray[np.int32]:
    shared = np.zeros(len(order), np.int32)
    for i in range(1, len(order)):
        limit = offsets[order[i] + 1] - offsets[order[i]]
        shared[i] = _shared_len(tokens, offsets, order[i - 1], order[i], 0, limit)
    return shared
