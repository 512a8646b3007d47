"""What a step is made of: operators, each bounded by one resource, and what must run before what.

A step may be computed in parts (nano-batches): runs of its sequences, in the order of the batch.
Operators of different parts that need different resources can then run at the same time. Knows no
model and no tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Resource = Literal["compute", "memory", "network"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One piece of a step's work."""

    name: str
    layer: int
    part: int  # of the step
    resource: Resource  # that bounds it
    after: tuple[int, ...]  # places in the step's list of what must have run, all before its own
    run: Callable[[], None]
    reads: Callable[[], Sequence[Any]] = tuple  # what others have made of the part, when it runs


class StepOperators:
    """The list of a step's operators, in the making; its order is a legal one.

    Operators of a part run one after the other. Attention of a part comes after attention of the
    part before it in the same layer: it may read K and V that the other writes, since a request
    can begin with the pages that its neighbour fills in the same step.
    """

    def __init__(self) -> None:
        self._operators: list[Operator] = []
        self._last: dict[int, int] = {}  # place of a part's last operator
        self._attention: dict[int, int] = {}  # place of a layer's last attention

    def add(
        self,
        name: str,
        layer: int,
        part: int,
        resource: Resource,
        run: Callable[[], None],
        reads: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """An operator that needs what its part has done so far, and nothing else."""
        after = (self._last.get(part),)
        self._add(name, layer, part, resource, run, reads, *after)

    def add_attention(
        self,
        layer: int,
        part: int,
        resource: Resource,
        run: Callable[[], None],
        reads: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """One that writes K and V, then reads those of all parts up to its own."""
        after = (self._last.get(part), self._attention.get(layer))
        self._attention[layer] = len(self._operators)
        self._add("attention", layer, part, resource, run, reads, *after)

    def _add(
        self,
        name: str,
        layer: int,
        part: int,
        resource: Resource,
        run: Callable[[], None],
        reads: Callable[[], Sequence[Any]],
        *after: int | None,
    ) -> None:
        needed = tuple(place for place in after if place is not None)
        self._last[part] = len(self._operators)
        self._operators.append(Operator(name, layer, part, resource, needed, run, reads))

    def all(self) -> Sequence[Operator]:
        return self._operators
