"""Take requests away from a batcher, and give it others: ranks hand work over. Compiled.

Nothing in memory moves: what a running request has is computed again where it goes, prompt and
tokens so far. Sums, prefix counts and lists are then as if the batcher had begun with what it has
now.
"""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.admit import remove
from blendrun.schedule.step.begin import BatcherJob, units_of
from blendrun.schedule.step.ledger import forget
from blendrun.schedule.step.lists import still_listed
from blendrun.schedule.step.remaining import chunk_s, rest_work
from blendrun.schedule.step.state import (
    DONE,
    ROOT,
    TWO_ENDED,
    TWO_LISTS,
    UNLEARNED,
    WAITING,
    Bools,
    State,
)
from blendrun.schedule.step.steering import divided
from blendrun.tree.prefix_tree import Int32

WORTH = 4.0  # KV reads left of a running request that moves, over the compute that it repeats


def withdrawn(state: State, order: Int32, requests: Int32) -> tuple[Int32, Int32]:
    """Take those of `requests` away that wait and have not run.

    Returns:
        what is left of `order`, and the requests taken. Nodes whose pages are given back are the
        first `num_dropped` of `state.step.dropped`.
    """
    gone = np.zeros(len(state.requests), np.bool_)
    state.counts["num_dropped"] = 0
    withdraw(state, np.ascontiguousarray(requests, np.int32), gone)
    return order[~gone[order]], requests[gone[requests]]


def released(state: State, order: Int32, memory_s: float, room: int) -> tuple[Int32, Int32, Int32]:
    """Take decoding requests away that have about `memory_s` of KV reads left to do together.

    Those go first that have most left for what they compute again. What they have so far is no
    more than `room` tokens together.

    Returns:
        what is left of `order`, the requests taken, and the slots that they leave. Nodes whose
        pages are given back: as for `withdrawn`.
    """
    state.counts["num_dropped"] = 0
    slots = release(state, memory_s, room, WORTH)
    requests = state.slots["request"][slots]
    for slot in slots.tolist():
        stop(state, slot)
    return order[~np.isin(order, requests)], requests, slots


def deposited(
    state: State, job: BatcherJob, order: Int32, requests: Int32, generated: Int32
) -> tuple[State, Int32]:
    """Give `requests`, which are not among those that wait or run, to the batcher of `job`.

    Args:
        generated: output tokens that each of them has, and that are computed once more.

    Returns:
        the state with new lists, and the longer order.
    """
    requests = np.ascontiguousarray(requests, np.int32)
    state.requests["known_len"][requests] = state.requests["prompt_len"][requests] + generated
    deposit(state, requests)
    if (state.requests["stratum"][requests] != UNLEARNED).any():
        state.limits["learns"] = 1
    order = np.concatenate([order, requests]).astype(np.int32)
    if job.place is not None:  # sharers of a prefix come one after the other
        order = order[np.argsort(job.place[order])]
    lists, counts = state.lists, state.counts
    stacks = []
    for stack, used in ((lists.back_left, "num_back_left"), (lists.back_right, "num_back_right")):
        longer = np.zeros(len(order) + len(state.slots), np.int32)
        longer[: counts[used]] = stack[: counts[used]]
        stacks.append(longer)
    state = state._replace(lists=lists._replace(back_left=stacks[0], back_right=stacks[1]))
    if state.limits["admission"] == TWO_LISTS:
        return divided(state, order), order
    rows = state.requests
    waits = (rows["status"][order] == WAITING) & (rows["num_preempted"][order] == 0)
    left = np.ascontiguousarray(order[waits])
    counts["at_left"], counts["at_right"] = 0, len(left)
    units = units_of(job, left if state.limits["admission"] == TWO_ENDED else left[:0])
    return state._replace(lists=state.lists._replace(left=left, units=units)), order


@compiled
def withdraw(state: State, requests: Int32, gone: Bools) -> None:
    """Mark in `gone` [N] those of `requests` that were taken."""
    columns, counts, lengths = state.requests, state.counts, state.lengths
    for request in requests:
        if not still_listed(state, request):
            continue
        _count(state, request, -1.0)
        forget(state, request)
        columns[request].status = DONE
        counts.num_waiting -= 1
        if columns[request].stratum != UNLEARNED:
            lengths.strata[columns[request].stratum].total -= 1
        gone[request] = True


@compiled
def release(state: State, memory_s: float, room: int, worth: float) -> Int32:
    """Slots of the requests that `released` takes; one at least is left."""
    slots, counts, columns = state.slots, state.counts, state.requests
    running = state.ordered.by_age[: counts.num_running]
    left_s, gain = np.empty(len(running), np.float64), np.empty(len(running), np.float64)
    for i in range(len(running)):
        slot = running[i]
        left_s[i] = slots[slot].rest_context * state.limits.context_s
        gain[i] = left_s[i] / chunk_s(state, 0, columns[slots[slot].request].known_len)
    chosen, n = np.empty(len(running), np.int32), 0
    for i in np.argsort(-gain, kind="mergesort"):
        slot = running[i]
        known = columns[slots[slot].request].known_len
        movable = slots[slot].decoding and n + 1 < len(running) and gain[i] > worth
        if movable and left_s[i] <= memory_s and known <= room:
            memory_s -= left_s[i]
            room -= known
            chosen[n] = slot
            n += 1
    return chosen[:n]


@compiled
def stop(state: State, slot: int) -> None:
    """A decoding request leaves without an end."""
    columns, lengths = state.requests, state.lengths
    request = state.slots[slot].request
    if not state.limits.first_in_prefill:
        columns[request].known_len -= 1  # the prefill that repeats makes no new token
    if columns[request].stratum != UNLEARNED:
        lengths.strata[columns[request].stratum].total -= 1
    remove(state, slot, True)


@compiled
def deposit(state: State, requests: Int32) -> None:
    columns, counts, nodes, lengths = state.requests, state.counts, state.nodes, state.lengths
    for request in requests:
        node = columns[request].node
        while node != ROOT:
            nodes[node].waiting += 1
            node = nodes[node].parent
        columns[request].status = WAITING
        columns[request].num_preempted = columns[request].computed_before = 0  # here, before
        counts.num_waiting += 1
        if columns[request].stratum != UNLEARNED:
            lengths.strata[columns[request].stratum].total += 1
        _count(state, request, 1.0)


@compiled_part
def _count(state: State, request: int, sign: float) -> None:
    """Add or take off the work of a waiting request, with prefixes that nobody else needs."""
    columns, counts, nodes = state.requests, state.counts, state.nodes
    decodes, context = rest_work(state, request, False)
    counts.rest_decodes += sign * decodes
    counts.rest_context += sign * context
    own_s = chunk_s(state, columns[request].branch_len, columns[request].known_len)
    node = columns[request].node
    while node != ROOT:
        if nodes[node].waiting == 1 and nodes[node].users == 0:
            own_s += chunk_s(state, nodes[node].start + nodes[node].filled, nodes[node].end)
        node = nodes[node].parent
    counts.prefill_s += sign * (own_s + state.limits.head_s)
