"""Some prompts as one array of token ids and one of lengths."""

from collections.abc import Mapping, Sequence
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
        pairs = zip(self._each(), counts, strict=True)
        return FlatTokens.of([part for part, count in pairs for _ in range(count)])

    def followed_by(self, ends: Mapping[int, TokenIds]) -> "FlatTokens":
        """Some prompts, by number, with more tokens at their end."""
        if not ends:
            return self
        parts = self._each()
        for number, end in ends.items():
            parts[number] = np.concatenate([parts[number], end])
        return FlatTokens.of(parts)

    def _each(self) -> list[TokenIds]:
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])
