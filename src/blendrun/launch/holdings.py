"""With whom each request lies, and how far it is: one column for each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32

POOL, SUSPECTED = -1, -2  # with nobody; likewise, until their test


class Holdings:
    def __init__(self, num_requests: int, parts: Sequence[Int32]) -> None:
        """`parts`: requests of each rank in planned order; the others are answered already."""
        self.owner = np.full(num_requests, POOL, np.int32)
        self.begun = np.zeros(num_requests, np.bool_)
        self.done = np.ones(num_requests, np.bool_)
        self._place = np.zeros(num_requests, np.int64)  # in planned order
        for rank, part in enumerate(parts):
            self.owner[part], self.done[part] = rank, False
        together = np.concatenate([np.zeros(0, np.int32), *parts])
        self._place[together] = np.arange(len(together))

    def unstarted_of(self, owner: int) -> Int32:
        """In planned order."""
        return self.chosen((self.owner == owner) & ~self.done & ~self.begun)

    def move(self, requests: Int32, owner: int) -> Int32:
        """They lie with `owner` from now on, and have not begun; in planned order."""
        self.owner[requests], self.begun[requests] = owner, False
        in_order: Int32 = requests[np.argsort(self._place[requests])]
        return in_order

    def lose(self, rank: int) -> Int32:
        """All that `rank` has not done goes to the pool; those that had begun, in planned order."""
        mine = (self.owner == rank) & ~self.done
        running = self.chosen(mine & self.begun)
        self.owner[mine], self.begun[mine] = POOL, False
        return running

    def chosen(self, which: npt.NDArray[np.bool_]) -> Int32:
        """Those of a mask [N], in planned order."""
        requests = np.flatnonzero(which).astype(np.int32)
        ordered: Int32 = requests[np.argsort(self._place[requests])]
        return ordered
