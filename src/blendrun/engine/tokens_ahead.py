"""Tokens that a step decodes before the CPU has seen them: the draws of the step before."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class TokensAhead:
    drawn: Tensor  # int64 [R] of the step before, on the device
    place: Int64  # [n] which of them each of a step's first tokens is; -1: none, the CPU knows it

    @classmethod
    def of(cls, decodes: Int32, drawn: Tensor, drew: Int32) -> "TokensAhead | None":
        """For `decodes` [n], each of another request, after draws for `drew` [R], likewise."""
        if not len(decodes) or not len(drew):
            return None
        order = np.argsort(drew)
        at = np.searchsorted(drew, decodes, sorter=order)
        found = order[np.minimum(at, len(drew) - 1)]
        return cls(drawn, np.where(drew[found] == decodes, found, -1))

    def over(self, token_ids: Tensor) -> Tensor:
        """A step's `token_ids`, int64 [T], with these in their places."""
        place = upload(torch.from_numpy(self.place), token_ids.device)
        n = len(place)
        first = torch.where(place >= 0, self.drawn[place.clamp(min=0)], token_ids[:n])
        return torch.cat([first, token_ids[n:]])
