"""Who may come in next: two lists, a sequence with two ends, or one list. Compiled.

*Two lists*: requests at or above the job's density wait on the left, subtree by subtree, the others
on the right, longest first. *Two ends* (paper, section 5.3) takes from both ends of one sequence.
"""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.expectations import is_learned, rest_of
from blendrun.schedule.step.remaining import compute_per_read
from blendrun.schedule.step.state import (
    LEFT,
    NOBODY,
    RIGHT,
    RUNNING,
    UNLEARNED,
    WAITING,
    State,
)
from blendrun.tree.prefix_tree import Int32

_MOVED_FRAC = 0.1  # change of a stratum's mean that divides the lists anew
_MAX_LEFT_SHARE = 0.6


@compiled_part
def must_divide(state: State) -> bool:
    """Whether what was learned has moved since the lists were made."""
    lengths = state.lengths
    for s in range(len(lengths.strata)):
        before = lengths.strata[s].listed_mean
        if abs(lengths.strata[s].mean_len - before) > _MOVED_FRAC * before:
            return True
    return False


@compiled
def divide(state: State, order: Int32) -> tuple[Int32, Int32]:
    """Left and right list of the requests that have not run, from `order`.

    Those of which nothing is known yet and that look dense come last on the left. What has output
    tokens already, from elsewhere, comes first on the right: its end should not wait.

    Returns:
        left in the order of `order`, and right, longest first.
    """
    columns, lengths = state.requests, state.lengths
    root = compute_per_read(state)
    left, right = np.empty(len(order), np.int32), np.empty(len(order), np.int32)
    unknown = np.empty(len(order), np.int32)
    length = np.empty(len(order), np.float64)
    num_left, num_right, num_unknown = 0, 0, 0
    left_held, held = 0.0, 0.0
    for request in order:
        if not still_listed(state, request):
            continue
        mean, square = rest_of(state, request, 0)
        own = columns[request].prompt_len - columns[request].branch_len
        token_steps = own * mean + (square + mean) / 2
        held += token_steps
        stratum = columns[request].stratum
        if not is_dense(state, request, mean, square, root):
            right[num_right] = request
            has_begun = columns[request].known_len > columns[request].prompt_len
            length[num_right] = -np.inf if has_begun else -mean
            num_right += 1
            columns[request].side = RIGHT
            continue
        columns[request].side = LEFT
        if stratum == UNLEARNED or is_learned(lengths, stratum):
            left[num_left] = request
            num_left += 1
            left_held += token_steps
        else:  # it may turn out to be long
            unknown[num_unknown] = request
            num_unknown += 1
    if held > 0:
        state.counts.left_share = min(state.limits.left_slack * left_held / held, _MAX_LEFT_SHARE)
    for s in range(len(lengths.strata)):
        lengths.strata[s].listed_mean = lengths.strata[s].mean_len
    left[num_left : num_left + num_unknown] = unknown[:num_unknown]
    num_left += num_unknown
    by_length = np.argsort(length[:num_right], kind="mergesort")
    return left[:num_left], right[:num_right][by_length]


@compiled_part
def is_dense(state: State, request: int, mean: float, square: float, root: float) -> bool:
    """Whether a request has at least the density `root`, with these moments of its output."""
    columns, limits = state.requests, state.limits
    prompt_len = columns[request].prompt_len - columns[request].spared_len
    read = (mean - 1) * prompt_len + (square - mean) / 2
    compute_s = columns[request].prefill_s + (mean - 1) * limits.decode_s
    return read <= 0 or compute_s >= root * (limits.context_s * read)


@compiled_part
def still_listed(state: State, request: int) -> bool:
    """It has not run yet; a preempted one waits elsewhere."""
    columns = state.requests
    return columns[request].status == WAITING and columns[request].num_preempted == 0


@compiled_part
def next_waiting(state: State, place: int) -> int:
    """First place from `place` on in the right list whose request still waits."""
    after, right = state.lists.next_right, state.lists.right
    while True:
        if after[place] != place:
            after[place] = after[after[place]]
            place = after[place]
        elif place < len(right) and not still_listed(state, right[place]):
            after[place] = place + 1
        else:
            return place


@compiled_part
def last_waiting(state: State, end: int) -> int:
    """Last place before `end` in the right list whose request still waits; -1: none does."""
    before, right = state.lists.last_right, state.lists.right
    while True:
        if before[end] != end:
            before[end] = before[before[end]]
            end = before[end]
        elif end > 0 and not still_listed(state, right[end - 1]):
            before[end] = end - 1
        else:
            return end - 1


@compiled_part
def take_right(state: State, place: int) -> None:
    """The request at `place` of the right list comes in."""
    state.lists.next_right[place] = place + 1
    state.lists.last_right[place + 1] = place


@compiled_part
def head_left(state: State) -> int:
    """Next request of the left list; NOBODY when it is empty."""
    counts, lists = state.counts, state.lists
    if counts.num_back_left > 0:
        return lists.back_left[counts.num_back_left - 1]
    while counts.at_left < counts.at_right:
        if still_listed(state, lists.left[counts.at_left]):
            return lists.left[counts.at_left]
        counts.at_left += 1
    return NOBODY


@compiled_part
def head_sample(state: State) -> int:
    """Next request of the sample whose stratum still has to be learned; NOBODY: none."""
    counts, sample = state.counts, state.lists.sample
    while counts.at_sample < len(sample):
        request = sample[counts.at_sample]
        known = is_learned(state.lengths, state.requests[request].stratum)
        if still_listed(state, request) and not known:
            return request
        counts.at_sample += 1
    return NOBODY


@compiled_part
def head_right(state: State) -> int:
    """Next request at the right end of a sequence with two ends."""
    counts, lists = state.counts, state.lists
    if counts.num_back_right > 0:
        return lists.back_right[counts.num_back_right - 1]
    while counts.at_left < counts.at_right:
        if still_listed(state, lists.left[counts.at_right - 1]):
            return lists.left[counts.at_right - 1]
        counts.at_right -= 1
    return NOBODY


@compiled_part
def put_back(state: State, request: int, side: int) -> None:
    """A preempted request waits at the head of its side."""
    counts, lists = state.counts, state.lists
    if side == LEFT:
        lists.back_left[counts.num_back_left] = request
        counts.num_back_left += 1
    else:
        lists.back_right[counts.num_back_right] = request
        counts.num_back_right += 1


@compiled_part
def taken_back(state: State, request: int) -> bool:
    """Whether `request` is at the head of a stack of preempted ones; takes it off."""
    counts, lists = state.counts, state.lists
    if counts.num_back_left > 0 and lists.back_left[counts.num_back_left - 1] == request:
        counts.num_back_left -= 1
        return True
    if counts.num_back_right > 0 and lists.back_right[counts.num_back_right - 1] == request:
        counts.num_back_right -= 1
        return True
    return False


@compiled_part
def sides_of_running(state: State) -> None:
    """Running requests of a learned stratum move to the side where it belongs now."""
    columns, slots, counts, lengths = state.requests, state.slots, state.counts, state.lengths
    root, num_right = compute_per_read(state), 0
    for i in range(counts.num_running):
        request = slots[state.ordered.by_age[i]].request
        stratum = columns[request].stratum
        if stratum != UNLEARNED and columns[request].status == RUNNING:
            mean, square = lengths.strata[stratum].mean_len, lengths.strata[stratum].square_len
            dense = is_dense(state, request, mean, square, root)
            columns[request].side = LEFT if dense else RIGHT
        num_right += columns[request].side
    counts.num_right = num_right
