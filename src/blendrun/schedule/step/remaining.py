"""Work still to do: compute of prefills, decodes, context that they will read. Compiled.

Their ratio steers the budget of every step. With learned lengths the sums are made anew whenever
the estimate is; in between they follow what is computed.
"""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.ends import insert_end, remove_end
from blendrun.schedule.step.expectations import rest_of
from blendrun.schedule.step.state import DONE, RUNNING, UNLEARNED, State

_OVERRUN = 1.5  # an output that is longer than planned ends at so many times its age
_DOUBT = 2.0  # outputs as planned that stand against what is seen
_BIAS_STEP, _MOST_BIAS = 1.1, 10.0


@compiled_part
def chunk_s(state: State, start: int, end: int) -> float:
    """Compute seconds of prefilling positions [start, end)."""
    limits = state.limits
    pairs = float(end) * float(end) - float(start) * float(start)
    return limits.token_s * (end - start) + limits.pair_s * pairs


@compiled_part
def rest_work(state: State, request: int, decoding: bool) -> tuple[float, float]:
    """Expected decodes of an unfinished request, and the context tokens that they read.

    The first token of a prefill comes without a decode. Of shared prefixes only a sharer's part
    counts where a step reads them once for all.
    """
    columns = state.requests
    known = columns[request].known_len
    mean, square = rest_of(state, request, known - columns[request].prompt_len)
    read = known - columns[request].spared_len
    if decoding:
        return mean, mean * (read - 1) + (square + mean) / 2
    return mean - 1, (mean - 1) * read + (square - mean) / 2


@compiled_part
def begin_slot(state: State, slot: int) -> None:
    """Note the expectations of a request that comes in; it is in no list of ends yet."""
    slots, counts = state.slots, state.counts
    decodes, context = rest_work(state, slots[slot].request, False)
    slots[slot].rest_decodes, slots[slot].rest_context = decodes, context
    slots[slot].end_step = counts.step + int(np.ceil(decodes))
    insert_end(state, slot, counts.num_running)


@compiled_part
def expect_again(state: State, slot: int) -> None:
    """Form the expectations of a running request anew."""
    slots, counts = state.slots, state.counts
    decodes, context = rest_work(state, slots[slot].request, slots[slot].decoding)
    counts.rest_decodes += decodes - slots[slot].rest_decodes
    counts.rest_context += context - slots[slot].rest_context
    slots[slot].rest_decodes, slots[slot].rest_context = decodes, context
    remove_end(state, slot, counts.num_running)
    slots[slot].end_step = counts.step + int(np.ceil(decodes))
    insert_end(state, slot, counts.num_running - 1)


@compiled_part
def expect_overdue(state: State) -> None:
    """Requests that should have ended by now get a new expectation."""
    slots, counts, by_end = state.slots, state.counts, state.ordered.by_end
    while counts.num_running > 0 and slots[by_end[0]].end_step < counts.step:
        slot = by_end[0]
        request = state.requests[slots[slot].request]
        if request.stratum == UNLEARNED:
            age = request.known_len - request.prompt_len
            see_output(state, slot, _OVERRUN * age)
        expect_again(state, slot)
    if counts.bias > counts.summed_bias:
        for i in range(counts.num_running):
            expect_again(state, state.ordered.by_age[i])
        sum_up(state)


@compiled_part
def see_output(state: State, slot: int, length: float) -> None:
    """An output ends at `length`, or went beyond its plan and is expected to: correct the plan.

    The bias grows in steps, and never falls: outputs that end early are the short ones.
    """
    slots, counts = state.slots, state.counts
    planned = state.requests[slots[slot].request].planned_output
    if slots[slot].overrun == 0:
        counts.planned_seen += planned
    counts.actual_seen += length - slots[slot].overrun
    slots[slot].overrun = length
    doubt = _DOUBT * planned
    bias = (counts.actual_seen + doubt) / (counts.planned_seen + doubt)
    if bias > _BIAS_STEP * counts.bias:
        counts.bias = min(bias, _MOST_BIAS)


@compiled
def sum_up(state: State) -> None:
    """Make the sums of decodes and context anew, over all unfinished requests."""
    columns, slots, counts = state.requests, state.slots, state.counts
    decodes, context = 0.0, 0.0
    for request in range(len(columns)):
        if columns[request].status != DONE and columns[request].status != RUNNING:
            more, read = rest_work(state, request, False)
            decodes += more
            context += read
    for i in range(counts.num_running):
        slot = state.ordered.by_age[i]
        decodes += slots[slot].rest_decodes
        context += slots[slot].rest_context
    counts.rest_decodes, counts.rest_context = decodes, context
    counts.summed_bias = counts.bias


@compiled_part
def compute_per_read(state: State) -> float:
    """Compute seconds for each second of KV reads in what is left; infinity without reads."""
    counts, limits = state.counts, state.limits
    read_s = counts.rest_context * limits.context_s
    if read_s <= 0:
        return np.inf
    return (max(counts.prefill_s, 0.0) + counts.rest_decodes * limits.decode_s) / read_s
