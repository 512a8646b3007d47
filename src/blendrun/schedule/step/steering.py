"""Drive a state from Python: begin, learn and divide when it is time."""

from blendrun.schedule.step.begin import with_lists
from blendrun.schedule.step.decide import must_refresh, refresh
from blendrun.schedule.step.expectations import learn
from blendrun.schedule.step.lists import divide
from blendrun.schedule.step.remaining import sum_up
from blendrun.schedule.step.state import TWO_LISTS, State
from blendrun.tree.prefix_tree import Int32


def begin(state: State, order: Int32) -> State:
    """First expectations, sums and lists, before the first step."""
    learn(state)
    sum_up(state)
    return divided(state, order)


def refreshed(state: State, order: Int32) -> State:
    """The state with new expectations and lists where it is time for them."""
    if must_refresh(state) and refresh(state):
        return divided(state, order)
    return state


def divided(state: State, order: Int32) -> State:
    """Left and right list made anew from the requests of `order` that have not run."""
    if state.limits["admission"] != TWO_LISTS:
        return state
    left, right = divide(state, order)
    counts = state.counts
    counts["at_left"], counts["at_right"] = 0, len(left)
    return state._replace(lists=with_lists(state.lists, left.copy(), right))
