"""The paper's two-ended scan: how memory and prefill are divided between the ends. Compiled.

Paper section 5.3: with the left end's share of memory the running mix has the root's density.
"""

from blendrun.compiled import compiled_part
from blendrun.schedule.step.state import (
    LEFT,
    RIGHT,
    SUM_COMPUTE,
    SUM_MEMORY,
    SUM_OUTPUT,
    SUM_OWN,
    State,
)

_MAX_DENSITY = 1e3  # above this next to no KV is read; the partition needs a number
_MIN_SHARE = 0.02
_WINDOW = 64  # requests at an end that stand for it
_DENSE_TILE = 128


@compiled_part
def left_share(state: State) -> float:
    """Share of memory with which the running mix has the root's density (paper, section 5.3)."""
    left, right = _mean_density(state, LEFT), _mean_density(state, RIGHT)
    root = min(state.limits.root_density, _MAX_DENSITY)
    share = (root - right) / (left - right) if left > right else 0.5
    return min(max(share, _MIN_SHARE), 1 - _MIN_SHARE)


@compiled_part
def two_ended_tokens(state: State) -> int:
    """Prefill tokens of a step that keep both sides at their share: N p / d of each (ibidem).

    The paper's N divides memory by p + d / 2; shared prefixes are held once but read by each, so
    here it counts the context that is read. Rounded up to dense batches of 128 with the decodes.
    """
    counts, limits, sums = state.counts, state.limits, state.lists.sums
    share, wanted = left_share(state), 0.0
    for side in range(2):
        first, last = _window(state, side)
        own = sums[last, SUM_OWN] - sums[first, SUM_OWN]
        output = sums[last, SUM_OUTPUT] - sums[first, SUM_OUTPUT]
        read_s = sums[last, SUM_MEMORY] - sums[first, SUM_MEMORY]
        if read_s > 0:
            # N requests that read as much per step as the side's memory holds
            part = (share if side == LEFT else 1 - share) * limits.num_pages * limits.page_size
            context = read_s / limits.context_s / output
            wanted += part / context * own / output
    # where the right cannot fill its share, because its requests peak together, the left keeps
    # the proportion
    room_right = (1 - share) * limits.num_pages * limits.page_size
    wanted *= min(counts.right_in_use / room_right, 1.0)
    dense = (counts.num_decodes + int(wanted) + _DENSE_TILE) // _DENSE_TILE * _DENSE_TILE
    return min(dense - counts.num_decodes, limits.chunk_size)


@compiled_part
def _window(state: State, side: int) -> tuple[int, int]:
    """Places of the next requests of a side: a scan by single ones would jitter."""
    counts = state.counts
    if side == LEFT:
        return counts.at_left, min(counts.at_left + _WINDOW, counts.at_right)
    return max(counts.at_right - _WINDOW, counts.at_left), counts.at_right


@compiled_part
def _mean_density(state: State, side: int) -> float:
    sums = state.lists.sums
    first, last = _window(state, side)
    read_s = sums[last, SUM_MEMORY] - sums[first, SUM_MEMORY]
    compute_s = sums[last, SUM_COMPUTE] - sums[first, SUM_COMPUTE]
    return min(compute_s / read_s, _MAX_DENSITY) if read_s > 0 else _MAX_DENSITY
