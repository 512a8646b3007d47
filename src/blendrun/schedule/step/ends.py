"""When running requests are expected to leave, and whether one more fits until then. Compiled.

Every decode adds one token per step, so the order of projected ends changes only when an
expectation does: a sorted list of slots makes the whole projection one walk over it.
"""

from blendrun.compiled import compiled_part
from blendrun.schedule.step.ledger import idle_pages_on_path, prefix_pages
from blendrun.schedule.step.state import State

_SOON_STEPS = 512  # the left share of memory may be used for this long
_CAP_FRAC = 0.99


@compiled_part
def insert_end(state: State, slot: int, num_slots: int) -> None:
    """Put `slot` into the list of `num_slots` slots, by its end."""
    by_end, slots = state.ordered.by_end, state.slots
    i = num_slots
    while i > 0 and slots[by_end[i - 1]].end_step > slots[slot].end_step:
        by_end[i] = by_end[i - 1]
        i -= 1
    by_end[i] = slot


@compiled_part
def remove_end(state: State, slot: int, num_slots: int) -> None:
    """Take `slot` out of the list of `num_slots` slots."""
    by_end = state.ordered.by_end
    i = 0
    while by_end[i] != slot:
        i += 1
    for j in range(i, num_slots - 1):
        by_end[j] = by_end[j + 1]


@compiled_part
def own_tokens(state: State, slot: int) -> int:
    """KV tokens that a slot holds once its prefill is over, rounded up to what pages can cost."""
    slots = state.slots
    held = max(slots[slot].computed, slots[slot].goal) - slots[slot].own_start
    return held + state.limits.page_size - 1


@compiled_part
def later_cap(state: State, is_right: bool) -> float:
    """Tokens that projected use may reach beyond the next steps."""
    counts, limits = state.counts, state.limits
    tokens = float(limits.num_pages * limits.page_size)
    if not is_right:
        return _CAP_FRAC * tokens
    return min((_CAP_FRAC - counts.left_share) * limits.overcommit, _CAP_FRAC) * tokens


@compiled_part
def update_headroom(state: State) -> None:
    """Least distance between projected use and the cap, over all moments to come."""
    counts, slots, limits = state.counts, state.slots, state.limits
    shared = (counts.node_pages - counts.idle_pages) * limits.page_size
    cap = _CAP_FRAC * limits.num_pages * limits.page_size - shared
    now, held = counts.step, 0.0
    least = cap
    for i in range(counts.num_running - 1, -1, -1):
        slot = state.ordered.by_end[i]
        held += own_tokens(state, slot)
        after = max(slots[slot].end_step - now, 0)
        least = min(least, cap - held - (counts.num_running - i) * after)
    counts.headroom = least


@compiled_part
def fits(
    state: State, request: int, cached: int, own_start: int, decodes: float, is_right: bool
) -> bool:
    """Whether projected KV stays below the cap at every projected end while `request` runs.

    Args:
        cached: leading tokens that are there.
        decodes: steps that it is expected to run.
        is_right: beyond the next steps it leaves the left its share of memory.
    """
    counts, slots, limits = state.counts, state.slots, state.limits
    size = limits.page_size
    own = float(state.requests[request].known_len - own_start + size)
    new_shared = (prefix_pages(state, request, cached) + idle_pages_on_path(state, request)) * size
    if not is_right:
        counts.headroom -= own + decodes + new_shared
        if counts.headroom >= 0:
            return True
    cap_now, cap_later = later_cap(state, False), later_cap(state, is_right)
    base = (counts.node_pages - counts.idle_pages) * size + new_shared + own
    held, count, checked_own = base, 1, False
    now = counts.step
    for i in range(counts.num_running - 1, -1, -1):
        slot = state.ordered.by_end[i]
        after = float(max(slots[slot].end_step - now, 0))
        if not checked_own and after <= decodes:
            checked_own = True
            if held + count * decodes > (cap_now if decodes <= _SOON_STEPS else cap_later):
                return False
        held += own_tokens(state, slot)
        count += 1
        if after <= decodes and held + count * after > (
            cap_now if after <= _SOON_STEPS else cap_later
        ):
            return False
    if not checked_own:
        return held + count * decodes <= (cap_now if decodes <= _SOON_STEPS else cap_later)
    return True
