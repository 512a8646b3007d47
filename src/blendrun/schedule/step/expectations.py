"""Expected output lengths, planned or learned from the run itself. Compiled.

Learned ones are a Kaplan-Meier estimate per stratum: finished outputs are events, running ones are
censored at their age. Survival beyond the last event holds until about twice the largest age, or
until the longest output that is allowed.
"""

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.state import UNLEARNED, Bools, Lengths, State
from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int64

_BIN_GROWTH = 1.085
_LEARNED_EVENTS = 8  # ended outputs after which the lengths of a stratum count as known


def bin_edges(longest: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Edges of length bins from 1 past `longest`: every integer first, then growing by 8.5 %."""
    edges = [1.0]
    while edges[-1] <= 2 * longest:
        edges.append(max(edges[-1] + 1, np.floor(edges[-1] * _BIN_GROWTH)))
    return np.array(edges)


def enough_ended(total: Int64) -> Int64:
    """As `is_learned`: outputs that have to end of strata with so many requests."""
    enough: Int64 = np.minimum(_LEARNED_EVENTS, (total + 1) // 2)
    return enough


def vouches(ended: Float64, running: Float64) -> Bools:
    """Whether other batchers know enough of strata: at least half of what began has ended."""
    enough: Bools = (ended >= _LEARNED_EVENTS) & (ended >= running)
    return enough


@compiled_part
def is_learned(lengths: Lengths, stratum: int) -> bool:
    """Whether enough has ended to go by: 8 outputs, or half of a small stratum."""
    enough = min(_LEARNED_EVENTS, (lengths.strata[stratum].total + 1) // 2)
    return lengths.strata[stratum].told or lengths.strata[stratum].finished >= enough


@compiled_part
def bin_of(lengths: Lengths, length: float) -> int:
    """The bin that holds `length`."""
    found = int(np.searchsorted(lengths.edge, length, side="right")) - 1
    return min(max(found, 0), len(lengths.edge) - 2)


@compiled_part
def rest_of(state: State, request: int, age: int) -> tuple[float, float]:
    """Expected output tokens beyond `age` of an unfinished output, and their expected square."""
    columns, lengths = state.requests, state.lengths
    limit = float(max(columns[request].max_output - age, 1))
    stratum = columns[request].stratum
    if stratum == UNLEARNED:
        planned = columns[request].planned_output * state.counts.bias - age
        if planned < 1:  # longer than planned: as if two thirds were done
            planned = max(age / 2, 1.0)
        rest = min(planned, limit)
        return rest, rest * rest
    if age == 0:
        mean, square = lengths.strata[stratum].mean_len, lengths.strata[stratum].square_len
    else:
        mean, square = _residual(lengths, stratum, float(age))
    if mean > limit:
        return limit, limit * limit
    return max(mean, 1.0), max(min(square, limit * mean), 1.0)


@compiled_part
def _residual(lengths: Lengths, stratum: int, age: float) -> tuple[float, float]:
    edge, b = lengths.edge, bin_of(lengths, age)
    begin, end = edge[b], edge[b + 1]
    here, there = lengths.survival[stratum, b], lengths.survival[stratum, b + 1]
    alive = here + (there - here) * (age - begin) / (end - begin)
    if alive <= 0:
        return age, 2 * age * age
    part = (alive + there) / 2 if there > 0 else alive
    tail = lengths.tail[stratum, b + 1] + part * (end - age)
    tail_t = lengths.tail_t[stratum, b + 1] + part * (end * end - age * age) / 2
    return max(tail / alive, 1.0), max(2 * (tail_t - age * tail) / alive, 1.0)


@compiled
def learn(state: State) -> None:
    """Estimate survival anew from all outputs so far, finished and running, here and elsewhere."""
    lengths, slots, columns = state.lengths, state.slots, state.requests
    num_strata, num_bins = lengths.events.shape
    running = np.zeros((num_strata, num_bins + 1))
    oldest = np.zeros(num_strata)
    for stratum in range(num_strata):
        for b in range(num_bins):
            if lengths.running_elsewhere[stratum, b] > 0:
                running[stratum, b] = lengths.running_elsewhere[stratum, b]
                oldest[stratum] = lengths.edge[b]
    for i in range(state.counts.num_running):
        request = slots[state.ordered.by_age[i]].request
        stratum = columns[request].stratum
        age = columns[request].known_len - columns[request].prompt_len
        if stratum != UNLEARNED and age > 0:
            running[stratum, bin_of(lengths, float(age))] += 1
            oldest[stratum] = max(oldest[stratum], float(age))
    state.counts.num_unlearned = state.counts.num_unsure = 0
    for stratum in range(num_strata):
        row = lengths.strata[stratum]
        state.counts.num_unlearned += not is_learned(lengths, stratum)
        state.counts.num_unsure += running[stratum].sum() > row.finished + row.elsewhere
        _estimate(lengths, stratum, running[stratum], oldest[stratum])


@compiled_part
def _estimate(
    lengths: Lengths,
    stratum: int,
    running: np.ndarray[tuple[int], np.dtype[np.float64]],
    oldest: float,
) -> None:
    edge = lengths.edge
    events = lengths.events[stratum] + lengths.before[stratum] + lengths.elsewhere[stratum]
    survival, num_bins = lengths.survival[stratum], len(events)
    at_risk, last = events.sum() + running.sum(), 0
    survival[0] = 1.0
    for b in range(num_bins):
        exposed = at_risk - running[b] / 2  # censored in the middle of the bin
        hazard = min(events[b] / exposed, 1.0) if exposed > 0 else 0.0
        survival[b + 1] = survival[b] * (1 - hazard)
        if events[b] > 0 or running[b] > 0:
            last = b
        at_risk -= events[b] + running[b]
    any_ended = events.sum() > 0
    end = 2 * max(edge[last + 1] if any_ended else 0.0, oldest)
    if not any_ended:
        end = max(end, lengths.strata[stratum].prior)
    end = min(end, lengths.strata[stratum].max_output)
    tail, tail_t = lengths.tail[stratum], lengths.tail_t[stratum]
    tail[num_bins] = tail_t[num_bins] = 0.0
    for b in range(num_bins - 1, -1, -1):
        if edge[b] >= end:
            survival[b] = 0.0
        a, z, mean = edge[b], min(edge[b + 1], max(end, edge[b])), survival[b]
        if edge[b + 1] < end:  # outputs are whole numbers, spread evenly over the bin
            width = z - a
            mean += (survival[b + 1] - survival[b]) * (width + 1) / (2 * width)
        tail[b] = tail[b + 1] + mean * (z - a)
        tail_t[b] = tail_t[b + 1] + mean * (z * z - a * a) / 2
    mean_len = edge[0] + tail[0]
    lengths.strata[stratum].mean_len = mean_len
    lengths.strata[stratum].square_len = max(edge[0] ** 2 + 2 * tail_t[0], mean_len**2)
