"""Some prompts as one array of token ids and one of lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

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

    def repeated(self, counts: npt.NDArray[Any]) -> "FlatTokens":
        """Each prompt as often as `counts` [prompts] says, one after the other."""
        if (counts == 1).all():
            return self
        parts = np.split(self.tokens, np.cumsum(self.lengths)[:-1])
        many = [part for part, count in zip(parts, counts, strict=True) for _ in range(count)]
        return FlatTokens.of(many)
