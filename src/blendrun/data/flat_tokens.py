"""Some prompts as one array of token ids and one of lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class FlatTokens:
    """Prompts one after the other."""

    tokens: TokenIds  # [total]
    lengths: npt.NDArray[np.int64]  # [prompts]

    @classmethod
    def of(cls, prompts: Sequence[TokenIds]) -> Self:
        lengths = np.array([len(ids) for ids in prompts], np.int64)
        tokens = np.concatenate([np.zeros(0, np.int32), *prompts])
        return cls(tokens, lengths)

    def where(self, keep: npt.NDArray[np.bool_]) -> "FlatTokens":
        """Only the prompts that `keep` [prompts] names."""
        if keep.all():
            return self
        return FlatTokens(self.tokens[np.repeat(keep, self.lengths)], self.lengths[keep])
