"""Runs operators of different parts at the same time, a lane for each resource.

A pair of operators that a kernel can do in one launch (products of a part beside decode attention
of another) would be replaced here: after `issue_order`, where two that stand next to each other on
two lanes are queued as one on either, with the waits of both. There is no such kernel yet.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from blendrun.engine.lanes import Lanes
from blendrun.engine.operators import Operator


class OverlapExecutor:
    """See `executors.Executor`. Returns when all is queued, which may be before it has run."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def run(self, operators: Sequence[Operator]) -> None:
        lanes = self._lanes
        awaited = {
            place
            for operator in operators
            for place in operator.after
            if operators[place].resource != operator.resource
        }
        marks: dict[int, Any] = {}
        lanes.begin()
        try:
            for place in issue_order(operators):
                operator = operators[place]
                foreign = [before for before in operator.after if before in awaited]
                foreign = [b for b in foreign if operators[b].resource != operator.resource]
                for before in foreign:
                    lanes.wait(operator.resource, marks[before])
                reads = operator.reads() if foreign else ()
                lanes.run(operator.resource, operator.run, reads)
                if place in awaited:
                    marks[place] = lanes.mark(operator.resource)
        finally:
            lanes.end()


def issue_order(operators: Sequence[Operator]) -> list[int]:
    """Places of all operators in the order in which lanes get them; a legal one.

    As if every operator took equally long: each lane takes what was ready first. So while a part is
    in its attention, the others' products come between, which the order of the list does not give:
    a lane does not pass over work that waits.
    """
    missing = [len(operator.after) for operator in operators]
    followers: list[list[int]] = [[] for _ in operators]
    for place, operator in enumerate(operators):
        for before in operator.after:
            followers[before].append(place)
    ready: dict[str, deque[int]] = {operator.resource: deque() for operator in operators}
    for place, count in enumerate(missing):
        if not count:
            ready[operators[place].resource].append(place)
    order: list[int] = []
    while begun := sorted(queue.popleft() for queue in ready.values() if queue):
        order += begun
        for place in begun:
            for later in followers[place]:
                missing[later] -= 1
                if not missing[later]:
                    ready[operators[later].resource].append(later)
    return order
