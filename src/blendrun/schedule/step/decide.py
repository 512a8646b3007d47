"""The decision of one step, and what its result changes. Compiled.

A step decodes every request that is ready, goes on with begun prefills and lets requests in, until
its budget is used: a fixed number of tokens, or compute seconds in the ratio to KV reads that the
rest of the job has. Then both resources are busy in every step, and run out together.
"""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.admit import (
    admit,
    can_enter,
    preempt,
)
from blendrun.schedule.step.choose import next_on_demand, right_that_fits, taken_from_end
from blendrun.schedule.step.ends import update_headroom
from blendrun.schedule.step.expectations import learn
from blendrun.schedule.step.finish import end
from blendrun.schedule.step.ledger import (
    available_pages,
    begin_reading,
    decode_pages,
    fill,
    grow,
)
from blendrun.schedule.step.lists import head_sample, must_divide, sides_of_running
from blendrun.schedule.step.remaining import (
    chunk_s,
    compute_per_read,
    expect_again,
    expect_overdue,
    sum_up,
)
from blendrun.schedule.step.state import (
    FIXED,
    LEFT,
    NOBODY,
    RIGHT,
    TWO_ENDED,
    TWO_LISTS,
    Bools,
    State,
)
from blendrun.schedule.step.two_ended import two_ended_tokens

READY, OVER, STUCK, TOO_LARGE = 0, 1, 2, 3
_REFRESH_STEPS = 256
_UNSURE_RATIO = 1.0  # of compute to KV reads at most, while most lengths are unknown
_PREFILL_PART = 4  # of a fixed budget at least


@compiled
def decide(state: State) -> int:
    """Fill `state.step` with the next step.

    Returns:
        READY; OVER: nothing runs and nothing waits; STUCK: requests wait but none can go on;
        TOO_LARGE: one request alone does not fit.
    """
    counts, limits = state.counts, state.limits
    counts.num_batch = counts.num_decodes = counts.batch_tokens = 0
    counts.num_admits = counts.num_preempts = counts.num_dropped = 0
    counts.step += 1
    expect_overdue(state)
    if not _schedule_decodes(state):
        return TOO_LARGE
    update_headroom(state)
    seconds, tokens = _budget(state)
    if limits.admission == TWO_LISTS:
        seconds, tokens = _start_sample(state, seconds, tokens)
        while counts.num_running < limits.max_seqs:
            request = right_that_fits(state)
            if request == NOBODY:
                break
            admit(state, request, RIGHT)
            update_headroom(state)
        seconds, tokens = _go_on(state, RIGHT, seconds, tokens)
        seconds, tokens = _go_on(state, LEFT, seconds, tokens)
    else:
        seconds, tokens = _go_on(state, NOBODY, seconds, tokens)
    while tokens > 0 and seconds > 0 and counts.num_waiting > 0:
        request, side = next_on_demand(state, False)
        if request == NOBODY:
            if counts.num_running > 0:
                break
            request, side = next_on_demand(state, True)
            if request == NOBODY:
                break
        taken_from_end(state, request, side)
        slot = admit(state, request, side)
        seconds, tokens = _prefill(state, slot, seconds, tokens)
    if counts.num_batch > 0:
        return READY
    return STUCK if counts.num_running + counts.num_waiting > 0 else OVER


@compiled_part
def _schedule_decodes(state: State) -> bool:
    """All decodes, oldest first; requests are sent back until their pages are there."""
    slots, counts = state.slots, state.counts
    need = decode_pages(state)
    while need > available_pages(state):
        if counts.num_running == 1 or not preempt(state):
            return False
        need = decode_pages(state)
    n = 0
    for i in range(counts.num_running):
        slot = state.ordered.by_age[i]
        if slots[slot].decoding:
            state.step.slot[n] = slot
            state.step.num_tokens[n] = 1
            n += 1
    grow(state, need)
    counts.num_batch = counts.num_decodes = counts.batch_tokens = n
    return True


@compiled_part
def _budget(state: State) -> tuple[float, int]:
    """Compute seconds and prefill tokens of this step at most."""
    counts, limits = state.counts, state.limits
    if limits.budget == FIXED:
        if limits.admission == TWO_ENDED and counts.at_left < counts.at_right:
            return np.inf, two_ended_tokens(state)
        # decodes count, but do not keep new requests out
        least = limits.chunk_size // _PREFILL_PART + 1
        return np.inf, max(limits.chunk_size - counts.num_decodes, least)
    ratio = compute_per_read(state)
    if ratio == np.inf:
        return np.inf, limits.chunk_size
    if counts.num_unlearned > 0 and limits.learns:  # the ratio is not known yet: spend no more
        ratio = 0.0  # compute than the step takes anyway
    if counts.num_unsure > 0 and limits.learns:  # the long ones are still to end, and to be seen
        ratio = min(ratio, _UNSURE_RATIO)
    read_s = (counts.context + counts.num_decoding) * limits.context_s
    read_s -= counts.spared * limits.spared_s
    seconds = max(ratio * read_s, limits.weight_s) - counts.num_decodes * limits.decode_s
    return seconds, limits.chunk_size


@compiled_part
def _start_sample(state: State, seconds: float, tokens: int) -> tuple[float, int]:
    """Requests from which lengths are learned come first; nothing waits for one that cannot."""
    while tokens > 0 and seconds > 0:
        request = head_sample(state)
        if request == NOBODY or not can_enter(state, request, False, False):
            break
        slot = admit(state, request, state.requests[request].side)
        seconds, tokens = _prefill(state, slot, seconds, tokens)
    return seconds, tokens


@compiled_part
def _go_on(state: State, side: int, seconds: float, tokens: int) -> tuple[float, int]:
    """Prefills that have begun, oldest first; `side` NOBODY means both."""
    slots, counts = state.slots, state.counts
    if counts.num_decoding == counts.num_running:
        return seconds, tokens
    for i in range(counts.num_running):
        if tokens <= 0 or seconds <= 0:
            break
        slot = state.ordered.by_age[i]
        mine = side == NOBODY or state.requests[slots[slot].request].side == side
        if mine and not slots[slot].decoding and slots[slot].last_chunk < counts.step:
            seconds, tokens = _prefill(state, slot, seconds, tokens)
    return seconds, tokens


@compiled_part
def _prefill(state: State, slot: int, seconds: float, tokens: int) -> tuple[float, int]:
    """Schedule the next chunk of `slot`; what is left of the budget."""
    columns, slots, counts, limits = state.requests, state.slots, state.counts, state.limits
    request, start = slots[slot].request, slots[slot].computed
    want = columns[request].known_len - start
    n = min(want, tokens)
    if n > 0 and seconds < chunk_s(state, start, start + n):
        n = min(n, _affordable(limits.token_s, limits.pair_s, start, seconds))
        if limits.tile > 1:  # a GEMM costs whole tiles: end at the nearest
            tile, total = limits.tile, counts.batch_tokens + n
            goal = max((total + tile // 2) // tile, (counts.batch_tokens + tile - 1) // tile) * tile
            tokens, seconds = min(tokens, goal - counts.batch_tokens), np.inf
            n = min(want, tokens)
    if n <= 0 and counts.batch_tokens == 0:
        n = 1  # every step gets on
    if n <= 0:
        return 0.0, 0
    took_s = chunk_s(state, start, start + n) + (limits.head_s if n == want else 0.0)
    fill(state, slot, start + n)
    slots[slot].last_chunk = counts.step
    counts.prefill_s -= took_s
    again = min(columns[request].computed_before, start + n) - start
    counts.recomputed += max(again, 0)
    state.step.slot[counts.num_batch] = slot
    state.step.num_tokens[counts.num_batch] = n
    counts.num_batch += 1
    counts.batch_tokens += n
    if n < want:
        return 0.0, 0
    return seconds - took_s, tokens - n


@compiled_part
def _affordable(token_s: float, pair_s: float, start: int, seconds: float) -> int:
    """Tokens of a chunk from `start` on that take `seconds`."""
    linear = token_s + 2 * pair_s * start
    if pair_s <= 0:
        return int(seconds / linear)
    root = np.sqrt(linear * linear + 4 * pair_s * seconds)
    return int(2 * seconds / (linear + root))


@compiled
def commit(state: State, finished: Bools) -> None:
    """Take over that the step was computed.

    Args:
        finished: by batch entry: the sequence is over. Every other one whose last known token was
            computed has one more.
    """
    columns, slots, counts = state.requests, state.slots, state.counts
    counts.num_dropped = 0
    for i in range(counts.num_batch):
        slot = state.step.slot[i]
        request = slots[slot].request
        slots[slot].computed += state.step.num_tokens[i]
        was_decoding = i < counts.num_decodes
        if was_decoding:
            counts.context += 1
            read = slots[slot].computed - columns[request].spared_len
            slots[slot].rest_decodes -= 1
            slots[slot].rest_context -= read
            counts.rest_decodes -= 1
            counts.rest_context -= read
        if slots[slot].computed < columns[request].known_len:
            continue
        if finished[i]:
            end(state, slot, columns[request].known_len - columns[request].prompt_len + 1)
            continue
        columns[request].known_len += 1
        if not was_decoding:
            slots[slot].decoding = True
            counts.num_decoding += 1
            counts.context += slots[slot].computed
            begin_reading(state, slot)
            expect_again(state, slot)


@compiled
def must_refresh(state: State) -> bool:
    """Whether it is time to learn again: every so many steps, more often in the beginning."""
    counts = state.counts
    if not state.limits.learns:
        return False
    return counts.step >= counts.next_refresh


@compiled
def refresh(state: State) -> bool:
    """Learn from the outputs so far; whether the lists should be divided anew."""
    counts = state.counts
    learn(state)
    for i in range(counts.num_running):
        expect_again(state, state.ordered.by_age[i])
    sum_up(state)
    if state.limits.admission == TWO_LISTS:
        sides_of_running(state)
    counts.next_refresh = counts.step + min(max(counts.step, 16), _REFRESH_STEPS)
    return must_divide(state)
