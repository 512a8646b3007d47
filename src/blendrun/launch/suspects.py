"""Which request killed its rank? Group tests: those that ran run again by themselves.

A group that kills its rank again is halved. What is condemned has been running in two deaths, the
second time alone; neighbours are acquitted by ending.
"""

from collections import deque

import numpy as np

from blendrun.tree.prefix_tree import Int32


class Suspects:
    """Groups that wait for their test."""

    def __init__(self, num_requests: int) -> None:
        self._deaths = np.zeros(num_requests, np.int32)  # in which a request was running
        self._groups: deque[Int32] = deque()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def accuse(self, running: Int32) -> Int32:
        """A rank died while these were `running`; the condemned among them, one at most."""
        self._deaths[running] += 1
        if len(running) == 1 and self._deaths[running[0]] >= 2:
            return running
        if len(running) == 1 or (len(running) and (self._deaths[running] == 1).all()):
            self._groups.append(running)
        elif len(running):
            middle = len(running) // 2
            self._groups.extend([running[:middle], running[middle:]])
        return running[:0]

    def next_group(self) -> Int32:
        """The group to test next, which must run with nothing else."""
        return self._groups.popleft()
