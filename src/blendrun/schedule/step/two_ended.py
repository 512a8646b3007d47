"""The paper's two-ended scan: how memory and prefill are divided between the ends. Compiled.

Paper section 5.3: with the left end's share of memory the running mix has the root's density.
"""

from blendrun.compiled import compiled_part
from blendrun.schedule.step.state import LEFT, MAX_DENSITY, RIGHT, Record, State

_MIN_SHARE = 0.02
_DENSE_TILE = 128


@compiled_part
def left_share(state: State) -> float:
    """Share of memory with which the running mix has the root's density (paper, section 5.3)."""
    left, right = _unit(state, LEFT).density, _unit(state, RIGHT).density
    root = min(state.limits.root_density, MAX_DENSITY)
    share = (root - right) / (left - right) if left > right else 0.5
    return min(max(share, _MIN_SHARE), 1 - _MIN_SHARE)


@compiled_part
def two_ended_tokens(state: State) -> int:
    """Prefill tokens of a step that keep both sides at their share: N p / d of each (ibidem).

    The paper's N divides memory by p + d / 2; shared prefixes are held once but read by each, so
    here it counts the context that is read. Rounded up to dense batches of 128 with the decodes.
    """
    counts, limits = state.counts, state.limits
    memory = float(limits.num_pages * limits.page_size)
    share = left_share(state)
    # the requests that a side holds read its memory once per step, and their prompts are
    # prefilled at the rate of their reads
    rate = share * _unit(state, LEFT).prefill_rate + (1 - share) * _unit(state, RIGHT).prefill_rate
    wanted = memory * limits.context_s * rate
    # where the right cannot fill its share, because its requests peak together, the left keeps
    # the proportion
    wanted *= min(counts.right_in_use / ((1 - share) * memory), 1.0)
    dense = (counts.num_decodes + int(wanted) + _DENSE_TILE) // _DENSE_TILE * _DENSE_TILE
    return min(dense - counts.num_decodes, limits.chunk_size)


@compiled_part
def _unit(state: State, side: int) -> Record:
    """The unit at a side's end, which may be used up while preempted requests wait."""
    counts, units = state.counts, state.lists.units
    if side == LEFT:
        return units[min(counts.at_left, len(units) - 1)]
    return units[max(counts.at_right - 1, 0)]
