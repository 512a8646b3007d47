"""Lanes of work beside each other, one for each resource: streams of a device, or what tests have.

Work of a lane runs in the order in which it was queued. Lanes wait for each other only where they
are told to; what is queued may run later, when the caller is long past it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor

from blendrun.engine.operators import Resource


class Lanes(Protocol):
    def begin(self) -> None:
        """What the caller has queued so far comes before all that lanes get from now on."""

    def run(self, lane: Resource, work: Callable[[], None], foreign: Iterable[Tensor] = ()) -> None:
        """Queue `work`; `foreign` tensors, made on other lanes, stay until it is through.

        Without that, their memory is given to the lane that made them once nobody holds them, and
        may be written while `work` reads.
        """

    def mark(self, lane: Resource) -> Any:
        """A mark behind all that `lane` has got."""

    def wait(self, lane: Resource, mark: Any) -> None:
        """What `lane` gets from now on comes after `mark`."""

    def end(self) -> None:
        """What the caller queues from now on comes after all that lanes got."""
