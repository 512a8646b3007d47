"""Requests that end, with the step that made their last token or noticed later. Compiled."""

from blendrun.compiled import compiled, compiled_part
from blendrun.schedule.step.admit import remove
from blendrun.schedule.step.expectations import bin_of
from blendrun.schedule.step.ledger import available_pages, decode_pages
from blendrun.schedule.step.remaining import see_output
from blendrun.schedule.step.state import UNLEARNED, State
from blendrun.tree.prefix_tree import Int32


@compiled_part
def end(state: State, slot: int, output_len: int) -> None:
    """The request in `slot` has made all of its output, and leaves."""
    lengths, stratum = state.lengths, state.requests[state.slots[slot].request].stratum
    if stratum != UNLEARNED:
        lengths.events[stratum, bin_of(lengths, float(output_len))] += 1
        lengths.strata[stratum].finished += 1
    else:
        see_output(state, slot, float(output_len))
    state.counts.num_finished += 1
    remove(state, slot, True)


@compiled
def end_late(state: State, slots: Int32, output_len: Int32) -> None:
    """Requests that were taken to go on have ended, with outputs [K] of these lengths."""
    state.counts.num_dropped = 0
    for i in range(len(slots)):
        end(state, slots[i], output_len[i])


@compiled
def lacks_pages(state: State) -> bool:
    """Whether a request has to be sent back before all others can decode once more."""
    needed: bool = decode_pages(state) > available_pages(state)
    return needed
