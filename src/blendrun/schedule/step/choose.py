"""Which request comes in next. Compiled.

The longest of the right list that fits; on demand the head of the left list; or, where one
sequence is taken from both ends, the head of the emptier side.
"""

from blendrun.compiled import compiled_part
from blendrun.schedule.step.admit import can_enter, has_room
from blendrun.schedule.step.ledger import match
from blendrun.schedule.step.lists import (
    head_left,
    head_right,
    last_waiting,
    next_waiting,
    take_right,
)
from blendrun.schedule.step.state import LEFT, NOBODY, RIGHT, TWO_ENDED, TWO_LISTS, State
from blendrun.schedule.step.two_ended import left_share

_KEPT_FRAC = 0.2  # of the right list: the shortest ones come in last
_LOOK_AHEAD = 64


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
