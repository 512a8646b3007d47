"""Take waiting requests away from a batcher, and give it others: ranks hand work over. Compiled.

Only requests that have not run move: nothing of them is in memory. Sums, prefix counts and lists
are then as if the batcher had begun with what it has now.
"""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.begin import BatcherJob, units_of
from blendrun.schedule.step.expectations import bin_of, learn
from blendrun.schedule.step.ledger import forget
from blendrun.schedule.step.lists import still_listed
from blendrun.schedule.step.outputs import Outputs
from blendrun.schedule.step.remaining import chunk_s, rest_work, sum_up
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


def deposited(state: State, job: BatcherJob, order: Int32, requests: Int32) -> tuple[State, Int32]:
    """Give `requests`, which are not among those that wait or run, to the batcher of `job`.

    Returns:
        the state with new lists, and the longer order.
    """
    requests = np.ascontiguousarray(requests, np.int32)
    deposit(state, requests)
    if (state.requests["stratum"][requests] != UNLEARNED).any():
        state.limits["learns"] = 1
    order = np.concatenate([order, requests]).astype(np.int32)
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


def observed(state: State, elsewhere: Outputs) -> None:
    """Learn from outputs of other batchers, too."""
    observe(
        state,
        np.ascontiguousarray(elsewhere.ended, np.int32),
        np.ascontiguousarray(elsewhere.ended_output, np.int32),
        np.ascontiguousarray(elsewhere.running, np.int32),
        np.ascontiguousarray(elsewhere.age, np.int32),
    )
    learn(state)
    sum_up(state)


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
def deposit(state: State, requests: Int32) -> None:
    columns, counts, nodes, lengths = state.requests, state.counts, state.nodes, state.lengths
    for request in requests:
        node = columns[request].node
        while node != ROOT:
            nodes[node].waiting += 1
            node = nodes[node].parent
        columns[request].status = WAITING
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


@compiled
def observe(
    state: State, ended: Int32, ended_output: Int32, running: Int32, running_age: Int32
) -> None:
    columns, lengths = state.requests, state.lengths
    for i in range(len(ended)):
        stratum = columns[ended[i]].stratum
        if stratum != UNLEARNED and ended_output[i] > 0:
            lengths.events[stratum, bin_of(lengths, float(ended_output[i]))] += 1
            lengths.strata[stratum].finished += 1
    lengths.elsewhere[:] = 0.0
    for i in range(len(running)):
        stratum = columns[running[i]].stratum
        if stratum != UNLEARNED and running_age[i] > 0:
            lengths.elsewhere[stratum, bin_of(lengths, float(running_age[i]))] += 1
