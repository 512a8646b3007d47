"""Let requests in: which one is next, whether it fits, and what entering changes. Compiled."""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.ends import fits, remove_end
from blendrun.schedule.step.ledger import (
    available_pages,
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
    head_left,
    head_right,
    last_waiting,
    next_waiting,
    put_back,
    take_right,
    taken_back,
)
from blendrun.schedule.step.remaining import begin_slot, chunk_s, rest_work
from blendrun.schedule.step.state import (
    DONE,
    LEFT,
    NOBODY,
    RIGHT,
    RUNNING,
    SUM_COMPUTE,
    SUM_MEMORY,
    SUM_OUTPUT,
    SUM_OWN,
    TWO_ENDED,
    TWO_LISTS,
    UNLEARNED,
    WAITING,
    State,
)
from blendrun.tree.prefix_tree import Int32

_WATERMARK_FRAC = 0.01  # pages left free for running decodes when a request comes in, …
_RECOVERY_FRAC = 0.10  # … and while preempted ones wait, so that they are not preempted again
_KEPT_FRAC = 0.2  # of the right list: the shortest ones come in last
_SLOW_START = 16
_LOOK_AHEAD = 64
_PINNED_AFTER = 3  # preemptions; then a request comes in only where its worst case fits
_MAX_DENSITY = 1e3  # above this next to no KV is read; the partition needs a number
_MIN_SHARE = 0.02
_WINDOW = 64
_DENSE_TILE = 128


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
    soon = is_right and limits.admission == TWO_LISTS
    return fits(state, request, cached, own_start_of(state, request, cached), decodes, soon)


@compiled_part
def is_slow(state: State, request: int) -> bool:
    """Whether as many of its stratum run as the outputs that have ended can vouch for.

    Where all that run could use all of their `max_output`, nothing has to be vouched for.
    """
    stratum, limits = state.requests[request].stratum, state.limits
    if stratum == UNLEARNED:
        return False
    row = state.lengths.strata[stratum]
    if row.running < _SLOW_START + 2 * row.finished:
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
    counts.num_admitted += 1
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
    counts.num_preempts += 1
    return True


@compiled_part
def right_that_fits(state: State) -> int:
    """The longest request of the right list that fits; takes it off the list. NOBODY: none."""
    counts, lists = state.counts, state.lists
    if counts.num_back_right > 0:
        request = lists.back_right[counts.num_back_right - 1]
        return request if can_enter(state, request, True, False) else NOBODY
    everyone = len(lists.right)
    first = next_waiting(state, 0)
    if first >= everyone:
        return NOBODY
    end = int(everyone * (1 - _KEPT_FRAC))
    if first >= end:
        end = everyone
    place = last_waiting(state, end)
    if not _right_has_room(state, place):
        return NOBODY
    if first < place and _right_has_room(state, first):
        place = first
    too_long = first
    while place - too_long > 1:
        middle = next_waiting(state, (too_long + place) // 2)
        if middle >= place:
            middle = last_waiting(state, (too_long + place) // 2)
            if middle <= too_long:
                break
        if _right_has_room(state, middle):
            place = middle
        else:
            too_long = middle
    for _ in range(_LOOK_AHEAD):  # past those whose prefix is being computed
        if place >= end:
            break
        if can_enter(state, lists.right[place], True, False):
            take_right(state, place)
            return lists.right[place]
        place = next_waiting(state, place + 1)
    return NOBODY


@compiled_part
def _right_has_room(state: State, place: int) -> bool:
    request = state.lists.right[place]
    return has_room(state, request, match(state, request)[0], True, False)


@compiled_part
def next_on_demand(state: State, force: bool) -> tuple[int, int]:
    """The request that comes in while budget is left, and its side; NOBODY: none may."""
    limits = state.limits
    left = head_left(state)
    if limits.admission == TWO_ENDED:
        return _next_of_two_ends(state, left, force)
    if left != NOBODY and can_enter(state, left, False, force):
        side = state.requests[left].side if limits.admission == TWO_LISTS else LEFT
        return left, side
    if force and limits.admission == TWO_LISTS:
        counts, lists = state.counts, state.lists
        right = NOBODY
        if counts.num_back_right > 0:
            right = lists.back_right[counts.num_back_right - 1]
        else:
            place = next_waiting(state, 0)
            if place < len(lists.right):
                right = lists.right[place]
        if right != NOBODY and can_enter(state, right, True, True):
            return right, RIGHT
    return NOBODY, LEFT


@compiled_part
def _next_of_two_ends(state: State, left: int, force: bool) -> tuple[int, int]:
    """The emptier side goes first, and each has its share of memory (paper, algorithm 3)."""
    columns, counts, limits = state.requests, state.counts, state.limits
    right = head_right(state)
    tokens = float(limits.num_pages * limits.page_size)
    share = 1.0
    if left != NOBODY and right != NOBODY:
        share = left_share(state)
    room_left = share * tokens
    room_right = (1 - share if share < 1 else 1.0) * tokens
    left_first = counts.left_in_use / room_left <= counts.right_in_use / room_right
    for turn in range(2):
        is_left = left_first == (turn == 0)
        request = left if is_left else right
        if request == NOBODY:
            continue
        in_use = counts.left_in_use if is_left else counts.right_in_use
        room = room_left if is_left else room_right
        has_room = in_use + columns[request].footprint <= room or in_use <= 0
        if (force or has_room) and can_enter(state, request, not is_left, force):
            return request, LEFT if is_left else RIGHT
    return NOBODY, LEFT


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
def taken_from_end(state: State, request: int, side: int) -> None:
    """Move the right end of a sequence with two ends past `request`."""
    counts, lists = state.counts, state.lists
    if (
        state.limits.admission == TWO_ENDED
        and side == RIGHT
        and counts.at_left < counts.at_right
        and lists.left[counts.at_right - 1] == request
    ):
        counts.at_right -= 1


@compiled
def too_large(state: State, order: Int32) -> Int32:
    """Requests that do not fit into all pages together with their whole output."""
    found, n = np.empty(len(order), np.int32), 0
    for request in order:
        if worst_pages(state, request) > state.limits.num_pages:
            found[n] = request
            n += 1
    return found[:n]
