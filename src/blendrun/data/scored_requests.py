"""Requests that score: one for each continuation of a row, its prompt and that behind it.

Nothing is drawn for them, so parameters of draws and answers do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from blendrun.data.flat_tokens import TokenIds
from blendrun.data.params import ParamColumns
from blendrun.data.sampling import SamplingParams

NOT_SCORED = -1


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRequests:
    """Which of the R requests of some rows score."""

    counts: npt.NDArray[np.int64]  # [rows] requests of each
    ends: dict[int, TokenIds]  # by request: the continuation
    start: npt.NDArray[np.int32]  # [R] where it begins; NOT_SCORED where there is none

    @classmethod
    def of(
        cls,
        rows: npt.NDArray[np.int64],
        num_answers: npt.NDArray[np.int32],
        prompt_len: npt.NDArray[np.int64],
        continuations: Mapping[int, list[TokenIds]],
    ) -> Self:
        """Of those `rows` of a batch.

        Args:
            num_answers, prompt_len: of every row of the batch.
            continuations: by row, where it asks for scores.
        """
        counts = num_answers[rows].astype(np.int64)
        place = {row: i for i, row in enumerate(rows.tolist()) if row in continuations}
        for row, i in place.items():
            counts[i] = len(continuations[row])
        first = np.cumsum(counts) - counts
        start = np.full(int(counts.sum()), NOT_SCORED, np.int32)
        ends: dict[int, TokenIds] = {}
        for row, i in place.items():
            requests = range(int(first[i]), int(first[i] + counts[i]))
            start[requests.start : requests.stop] = prompt_len[row]
            ends.update(zip(requests, continuations[row], strict=True))
        return cls(counts, ends, start)

    def numbers(
        self, params: ParamColumns, rows: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[Any]]:
        """Number parameters of the requests, whose `rows` [R] are given."""
        plain = replace(SamplingParams(), max_tokens=0)
        return {
            field: np.where(
                self.start == NOT_SCORED, values[rows], values.dtype.type(getattr(plain, field))
            )
            for field, values in params.numbers.items()
        }

    def rare(self, params: ParamColumns, rows: npt.NDArray[np.int64]) -> dict[str, list[Any]]:
        """Rare parameters likewise, and where the continuation begins."""
        starts = self.start.tolist()
        rare = {
            field: [
                values[row] if start == NOT_SCORED else None
                for row, start in zip(rows.tolist(), starts, strict=True)
            ]
            for field, values in params.rare.items()
        }
        return rare | {"score_start": [None if s == NOT_SCORED else s for s in starts]}
