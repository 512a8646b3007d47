"""Collects the KV traffic of one step: page copies, and which token goes to which slot."""

import numpy as np

from blendrun.schedule.batch import CacheWrites
from blendrun.tree.prefix_tree import Int32, Int64


class StepWrites:
    """Filled while a step is scheduled, taken once by the backend."""

    def __init__(self) -> None:
        self._tokens: list[Int32] = []
        self._slots: list[Int64] = []
        self._copies: list[tuple[int, int]] = []
        self._copy_source: dict[int, int] = {}

    def write(self, token_idx: Int32, slots: Int64) -> None:
        """Tokens of the batch go to slots (page * page_size + offset), both [W]."""
        self._tokens.append(token_idx)
        self._slots.append(slots)

    def copy(self, source: int, target: int) -> None:
        """Page `target` starts as a copy of `source`.

        A page that is itself a copy made in this step holds nothing yet: its own source is read.
        """
        source = self._copy_source.get(source, source)
        self._copies.append((source, target))
        self._copy_source[target] = source

    def collected(self) -> CacheWrites:
        copies = np.array(self._copies, np.int32).reshape(-1, 2)
        return CacheWrites(
            copies[:, 0].copy(),
            copies[:, 1].copy(),
            np.concatenate([np.zeros(0, np.int32), *self._tokens]),
            np.concatenate([np.zeros(0, np.int64), *self._slots]),
        )
