"""Let requests in, and out again: whether one fits, and what changes with it. Compiled."""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.ends import fits, remove_end
from blendrun.schedule.step.ledger import (
    available_pages,
    end_reading,
    enter,
    idle_pages_on_path,
    leave,
    match,
    num_pages,
    own_start_of,
    prefill_pages,
    prefix_pages,
)
from blendrun.schedule.step.lists import (
    put_back,
    taken_back,
)
from blendrun.schedule.step.remaining import begin_slot, chunk_s, rest_work
from blendrun.schedule.step.state import (
    DONE,
    NOBODY,
    RIGHT,
    RUNNING,
    TWO_LISTS,
    UNLEARNED,
    WAITING,
    State,
)
from blendrun.tree.prefix_tree import Int32

_WATERMARK_FRAC = 0.01  # pages left free for running decodes when a request comes in, …
_RECOVERY_FRAC = 0.10  # … and while preempted ones wait, so that they are not preempted again
_SLOW_START = 16
_DEVIATIONS = 3.0  # of a length from the mean, beyond which next to none is
_PINNED_AFTER = 3  # preemptions; then a request comes in only where its worst case fits


@compiled_part
def can_enter(state: State, request: int, is_right: bool, force: bool) -> bool:
    """Whether `request` may come in now; `force` asks for nothing but pages."""
    cached, filling = match(state, request)
    if filling or state.counts.num_running >= state.limits.max_seqs:
        return False
    return has_room(state, request, cached, is_right, force)


@compiled_part
def has_room(state: State, request: int, cached: int, is_right: bool, force: bool) -> bool:
    """Whether memory holds `request` now and, as far as expectations go, to its end."""
    counts, limits = state.counts, state.limits
    need = prefill_pages(state, request, cached) + idle_pages_on_path(state, request)
    if force:
        return need <= available_pages(state)
    waits = counts.num_back_left + counts.num_back_right > 0
    spare = (_RECOVERY_FRAC if waits else _WATERMARK_FRAC) * limits.num_pages
    if need + spare > available_pages(state) or is_slow(state, request):
        return False
    if state.requests[request].num_preempted >= _PINNED_AFTER and (
        counts.pinned_pages + worst_pages(state, request) > limits.num_pages
    ):
        return False
    decodes = max(rest_work(state, request, False)[0], 0.0)
    is_right = is_right and limits.admission == TWO_LISTS and not _is_last_call(state, request)
    return fits(state, request, cached, own_start_of(state, request, cached), decodes, is_right)


@compiled_part
def _is_last_call(state: State, request: int) -> bool:
    """Whether an output that begins later than now may end after everything else.

    As many steps are left as read the rest of all context, as much of it as this one does. From
    then on the left side needs no memory for later.
    """
    stratum = state.requests[request].stratum
    if stratum == UNLEARNED or state.counts.num_unlearned > 0:
        return False
    row = state.lengths.strata[stratum]
    longest = row.mean_len + _DEVIATIONS * np.sqrt(max(row.square_len - row.mean_len**2, 0.0))
    return state.counts.rest_context < min(longest, row.max_output) * state.counts.context


@compiled_part
def is_slow(state: State, request: int) -> bool:
    """Whether as many of its stratum run as the outputs that have ended can vouch for.

    Those of other ranks tell as much of lengths as its own, but vouch for less: they tell it to all
    ranks at once, each of which would fill its memory with long outputs. Where all that run could
    use all of their `max_output`, nothing has to be vouched for.
    """
    stratum, limits = state.requests[request].stratum, state.limits
    if stratum == UNLEARNED:
        return False
    row = state.lengths.strata[stratum]
    if row.running < _SLOW_START + 2 * row.finished + row.elsewhere // 2:
        return False
    worst = state.counts.worst_tokens + worst_own_tokens(state, request)
    return worst > limits.num_pages * limits.page_size


@compiled_part
def worst_own_tokens(state: State, request: int) -> int:
    """Tokens of a request's own, all of its output used, rounded up as pages may."""
    row = state.requests[request]
    return row.prompt_len - row.branch_len + row.max_output + state.limits.page_size


@compiled_part
def worst_pages(state: State, request: int) -> int:
    """Pages of a request that shares nothing and uses all of its output tokens."""
    columns = state.requests
    own_start = own_start_of(state, request, 0)
    end = columns[request].prompt_len + columns[request].max_output + 1
    own = num_pages(own_start, end, state.limits.page_size)
    return prefix_pages(state, request, 0) + own + 1


@compiled_part
def admit(state: State, request: int, side: int) -> int:
    """Take a waiting request into the running ones; its slot."""
    columns, slots, counts = state.requests, state.slots, state.counts
    taken_back(state, request)
    cached, _ = match(state, request)
    slot = state.ordered.free[state.limits.max_seqs - counts.num_running - 1]
    slots[slot].request = request
    slots[slot].decoding = False
    slots[slot].overrun = 0
    enter(state, slot, request, cached)
    begin_slot(state, slot)
    state.ordered.by_age[counts.num_running] = slot
    counts.num_running += 1
    counts.num_waiting -= 1
    columns[request].status = RUNNING
    columns[request].side = side
    if side == RIGHT:
        counts.num_right += 1
        counts.right_in_use += columns[request].footprint
    else:
        counts.left_in_use += columns[request].footprint
    counts.worst_tokens += worst_own_tokens(state, request)
    if columns[request].stratum != UNLEARNED:
        state.lengths.strata[columns[request].stratum].running += 1
    if columns[request].num_cached < 0:
        columns[request].num_cached = cached
    if columns[request].num_preempted >= _PINNED_AFTER:
        counts.pinned_pages += worst_pages(state, request)
    state.step.admitted[counts.num_admits] = slot
    counts.num_admits += 1
    return slot


@compiled_part
def remove(state: State, slot: int, finished: bool) -> None:
    """A request leaves its slot, for good or to wait again."""
    columns, slots, counts = state.requests, state.slots, state.counts
    request = slots[slot].request
    if slots[slot].decoding:
        counts.num_decoding -= 1
        counts.context -= slots[slot].computed
        end_reading(state, slot)
    leave(state, slot, finished)
    remove_end(state, slot, counts.num_running)
    i = 0
    while state.ordered.by_age[i] != slot:
        i += 1
    for j in range(i, counts.num_running - 1):
        state.ordered.by_age[j] = state.ordered.by_age[j + 1]
    counts.num_running -= 1
    state.ordered.free[state.limits.max_seqs - counts.num_running - 1] = slot
    slots[slot].request = NOBODY
    slots[slot].decoding = False
    counts.rest_decodes -= slots[slot].rest_decodes
    counts.rest_context -= slots[slot].rest_context
    if columns[request].side == RIGHT:
        counts.num_right -= 1
        counts.right_in_use -= columns[request].footprint
    else:
        counts.left_in_use -= columns[request].footprint
    if columns[request].num_preempted >= _PINNED_AFTER:
        counts.pinned_pages -= worst_pages(state, request)
    counts.worst_tokens -= worst_own_tokens(state, request)
    if columns[request].stratum != UNLEARNED:
        state.lengths.strata[columns[request].stratum].running -= 1
    columns[request].status = DONE if finished else WAITING


@compiled_part
def preempt(state: State) -> bool:
    """Send the youngest request that came from the right back, else the youngest; False: none."""
    columns, slots, counts = state.requests, state.slots, state.counts
    victim, rank = NOBODY, -1
    for i in range(counts.num_running):
        slot = state.ordered.by_age[i]
        request = slots[slot].request
        if columns[request].num_preempted >= _PINNED_AFTER:
            continue
        mine = i + (counts.num_running if columns[request].side == RIGHT else 0)
        if mine > rank:
            victim, rank = slot, mine
    if victim == NOBODY:
        return False
    request, computed = slots[victim].request, slots[victim].computed
    columns[request].computed_before = max(columns[request].computed_before, computed)
    if slots[victim].decoding:
        counts.prefill_s += state.limits.head_s
    if computed > slots[victim].own_start:
        counts.prefill_s += chunk_s(state, slots[victim].own_start, computed)
    if slots[victim].decoding and not state.limits.first_in_prefill:
        columns[request].known_len -= 1  # the prefill that repeats makes no new token
    side = columns[request].side
    remove(state, victim, False)
    columns[request].num_preempted += 1
    counts.preemptions += 1
    counts.num_waiting += 1
    decodes, context = rest_work(state, request, False)
    counts.rest_decodes += decodes
    counts.rest_context += context
    put_back(state, request, side)
    state.step.preempted[counts.num_preempts] = victim
    state.step.sent_back[counts.num_preempts] = request
    counts.num_preempts += 1
    return True


@compiled
def too_large(state: State, order: Int32) -> Int32:
    """Requests that do not fit into all pages together with their whole output."""
    found, n = np.empty(len(order), np.int32), 0
    for request in order:
        if worst_pages(state, request) > state.limits.num_pages:
            found[n] = request
            n += 1
    return found[:n]
