"""Which request comes next: one queue with two ends, and the memory that each end may fill.

`blendserve` takes from both ends of the density-sorted sequence and divides KV memory between
them by the paper's rule (section 5.3, algorithm 3); the other policies take from the left end and
own all of it. Knows footprints in tokens, not pages.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32

Side = Literal[0, 1]
LEFT: Side = 0
RIGHT: Side = 1

# a density above this reads next to no KV; the partition needs a number
_MAX_DENSITY = 1e3
_MIN_PARTITION_FRAC = 0.02


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """What admission needs to know of each request, [N] by request number."""

    density: Float64
    footprint: Float64  # KV tokens of its own over its life, on average: own prompt + output / 2


def memory_partition(
    left_density: float, right_density: float, root_density: float
) -> tuple[float, float]:
    """Shares of KV memory for the left and the right end, which add up to 1.

    With them the running mix has the root's density: paper section 5.3. At least 2 % each.
    """
    left, right, root = (
        min(density, _MAX_DENSITY) for density in (left_density, right_density, root_density)
    )
    frac = (root - right) / (left - right) if left > right else 0.5
    frac = min(max(frac, _MIN_PARTITION_FRAC), 1 - _MIN_PARTITION_FRAC)
    return frac, 1 - frac


class AdmissionQueue:
    """Requests that wait, in planned order, and the footprint of those that run, by side."""

    def __init__(
        self,
        sequence: Int32,
        columns: QueueColumns,
        root_density: float,
        capacity_tokens: int,
        two_ended: bool,
    ) -> None:
        """`sequence`: requests still to run, densest first where `two_ended`."""
        self._sequence, self._columns = sequence, columns
        self._root_density, self._capacity = root_density, capacity_tokens
        self._two_ended = two_ended
        self._fits = float(columns.footprint[sequence].sum()) <= capacity_tokens
        self._left, self._right = 0, len(sequence)
        self._preempted: tuple[list[int], list[int]] = ([], [])
        self._in_use = [0.0, 0.0]

    @property
    def num_waiting(self) -> int:
        return self._right - self._left + self.num_preempted

    @property
    def num_preempted(self) -> int:
        return len(self._preempted[LEFT]) + len(self._preempted[RIGHT])

    def candidates(self) -> list[tuple[Side, int]]:
        """The next request of each side that has room for it, the emptier side first."""
        shares = self._shares()
        found = []
        for side in (LEFT, RIGHT) if self._two_ended else (LEFT,):
            request = self._head(side)
            if request is None:
                continue
            room = shares[side] * self._capacity
            need = self._in_use[side] + self._columns.footprint[request]
            if need <= room or self._in_use[side] <= 0 or (self._two_ended and self._fits):
                found.append((self._in_use[side] / room, side, request))
        return [(side, request) for _, side, request in sorted(found)]

    def pop(self, side: Side) -> int:
        """Take the head of `side` into the running set."""
        request = self._head(side)
        if request is None:
            raise IndexError("pop from an empty queue")
        if self._preempted[side]:
            self._preempted[side].pop()
        elif side == LEFT:
            self._left += 1
        else:
            self._right -= 1
        self._in_use[side] += float(self._columns.footprint[request])
        return request

    def finish(self, side: Side, request: int) -> None:
        self._in_use[side] -= float(self._columns.footprint[request])

    def put_back(self, side: Side, request: int) -> None:
        """A preempted request waits at the head of its side."""
        self.finish(side, request)
        self._preempted[side].append(request)

    def _head(self, side: Side) -> int | None:
        if self._preempted[side]:
            return self._preempted[side][-1]
        if self._left >= self._right:
            return None
        return int(self._sequence[self._left if side == LEFT else self._right - 1])

    def _shares(self) -> tuple[float, float]:
        left, right = self._head(LEFT), self._head(RIGHT)
        if not self._two_ended or left is None or right is None:
            return 1.0, 1.0
        density = self._columns.density
        return memory_partition(float(density[left]), float(density[right]), self._root_density)


def footprints(own_prompt_len: Int32, output_len: Int32) -> Float64:
    """KV tokens that a request holds on average while it runs, [N]."""
    return own_prompt_len + np.asarray(output_len, np.float64) / 2
