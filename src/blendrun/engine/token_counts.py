"""How often each token occurs in an answer, as columns that grow with it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32, Int64


class TokenCounts:
    """Different tokens of an answer; those of `prompt` are there from the start, with count 0."""

    def __init__(self, prompt: Int32 | Sequence[int]) -> None:
        self._ids: Int64 = np.unique(np.asarray(prompt, np.int64))
        self._counts = np.zeros(len(self._ids), np.float32)
        self._place = {token: i for i, token in enumerate(self._ids.tolist())}
        self._taken = 0

    def catch_up(self, token_ids: list[int]) -> None:
        """Count the tokens of the answer, `token_ids`, that are new since the last call."""
        for token in token_ids[self._taken :]:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.resize(self._ids, 2 * place + 64)
                self._counts = np.concatenate(
                    [self._counts, np.zeros(place + 64, np.float32)], dtype=np.float32
                )
            self._ids[place] = token
            self._counts[place] += 1
        self._taken = len(token_ids)

    @property
    def ids(self) -> Int64:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """Occurrences of each of `ids`."""
        return self._counts[: len(self._place)]
