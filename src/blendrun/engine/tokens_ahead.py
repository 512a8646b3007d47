"""Tokens that a step decodes before the CPU has seen them: the draws of the step before."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blendrun.errors import BackendError
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class TokensAhead:
    drawn: Tensor  # int64 [R] of the step before, on the device
    place: Int64  # [n] which of them each decode of a step begins with

    @classmethod
    def of(cls, decodes: Int32, drawn: Tensor, drew: Int32) -> "TokensAhead | None":
        """For `decodes` [n], each of another request, after draws for `drew` [R]; None: for none.

        Raises:
            BackendError: nothing was drawn for one of them; whoever decodes drew in every step.
        """
        if not len(decodes):
            return None
        order = np.argsort(drew)
        place = np.searchsorted(drew, decodes, sorter=order)
        if not np.isin(decodes, drew).all():
            raise BackendError("a step decodes a request for which the one before drew nothing")
        return cls(drawn, order[place])

    def over(self, token_ids: Tensor) -> Tensor:
        """A step's `token_ids`, int64 [T], with these in the first places."""
        place = upload(torch.from_numpy(self.place), token_ids.device)
        return torch.cat([self.drawn[place], token_ids[len(place) :]])
