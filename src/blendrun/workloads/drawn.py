"""The requests drawn from one set, as columns of token counts.

A set has one system prompt; its requests may fall into groups that share more than that. Knows
lengths, not tokens and not costs.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """n requests in the order in which they were drawn; all lengths in tokens, outputs true."""

    own_len: Int32  # [n] prompt tokens after the shared prefix, at least 1
    output_len: Int32  # [n] at least 1
    group: Int32  # [n] index into group_depth
    group_depth: Int32  # [G] shared prefix of each group, system prompt included
    system_len: int  # tokens that all requests begin with

    def __len__(self) -> int:
        return len(self.own_len)

    @property
    def shared_len(self) -> Int32:
        """Prompt tokens shared within each request's group, [n]."""
        return self.group_depth[self.group]

    @property
    def prompt_len(self) -> Int32:
        """Prompt tokens of each request, [n]."""
        return self.shared_len + self.own_len

    def first(self, num_requests: int) -> Self:
        """The first requests drawn."""
        return self._taken(np.arange(num_requests))

    def swapped(self, a: int, b: int) -> Self:
        """The same requests with those at places `a` and `b` exchanged."""
        places = np.arange(len(self))
        places[[a, b]] = b, a
        return self._taken(places)

    def _taken(self, places: np.ndarray) -> Self:
        return replace(
            self,
            own_len=self.own_len[places],
            output_len=self.output_len[places],
            group=self.group[places],
        )
