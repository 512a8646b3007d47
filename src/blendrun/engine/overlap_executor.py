"""Runs operators of different parts at the same time, a lane for each resource.

A pair of operators that a kernel can do in one launch (products of a part beside decode attention
of another) would be replaced here: after `issue_order`, where two that stand next to each other on
two lanes are queued as one on either, with the waits of both. There is no such kernel yet.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
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

    As if operators of the memory lane took longer than all else. While one runs, the others do
    whatever does not wait for it, and first what leads to the next one: so decode attention of a
    part has all products of another beside it, which the order of the list does not give, since a
    lane does not pass over work that waits.
    """
    followers: list[list[int]] = [[] for _ in operators]
    for place, operator in enumerate(operators):
        for before in operator.after:
            followers[before].append(place)
    distance = _operators_to_memory(operators, followers)
    missing = [len(operator.after) for operator in operators]
    order: list[int] = []
    ready: list[tuple[int, int]] = []  # a heap
    running: deque[int] = deque()  # on the memory lane

    def begin(place: int) -> None:
        if operators[place].resource == "memory":
            order.append(place)
            running.append(place)
        else:
            heappush(ready, (distance[place], place))

    for place, count in enumerate(missing):
        if not count:
            begin(place)
    while ready or running:
        if ready:
            _, ended = heappop(ready)
            order.append(ended)
        else:
            ended = running.popleft()
        for later in followers[ended]:
            missing[later] -= 1
            if not missing[later]:
                begin(later)
    return order


def _operators_to_memory(
    operators: Sequence[Operator], followers: Sequence[Sequence[int]]
) -> list[int]:
    """Operators between each one and the nearest behind it on the memory lane; many: none is."""
    distance = [len(operators)] * len(operators)
    for place in reversed(range(len(operators))):
        for later in followers[place]:
            through = 0 if operators[later].resource == "memory" else 1 + distance[later]
            distance[place] = min(distance[place], through)
    return distance
