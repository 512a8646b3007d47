"""What kept waiting requests out of a step, as far as its record tells."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from blendrun.report.priced_steps import PricedSteps
from blendrun.tree.prefix_tree import Int64

_FULL = 0.95  # of a chunk: what remains is too little for a next piece


class Held(IntEnum):
    """The first that holds."""

    NOTHING = 0  # no request waited
    MAX_SEQS = 1
    CHUNK = 2
    PAGES = 3
    ORDER = 4  # the policy and its budget, or requests that wait for a beginning they share


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a step; None where the run's engine does not tell."""

    max_seqs: int | None
    chunk_size: int | None
    request_pages: float  # of a whole request, on average
    growth_pages: float  # that a request which runs will still take, on average over time

    @classmethod
    def of(cls, environment: Mapping[str, Any], prompt_len: Int64, output_len: Int64) -> Self:
        """Of a run, with the lengths of the answers that it has."""
        page_size = environment["page_size"]
        # a request is seen to run as long as its output is, so long ones weigh more
        longest_runs = float(output_len @ output_len) / max(float(output_len.sum()), 1.0)
        mean = float((prompt_len + output_len).mean()) if len(output_len) else 0.0
        return cls(
            max_seqs=environment.get("max_seqs"),
            chunk_size=environment.get("chunk_size"),
            request_pages=mean / page_size + 1,
            growth_pages=longest_runs / 2 / page_size,
        )


def held_back(steps: PricedSteps, limits: Limits) -> npt.NDArray[np.int8]:
    """[S] a `Held` of each step.

    Pages are what a step lacks if a request of mean length finds no room beside those that run
    once they have grown.
    """
    free = steps.num_pages - steps.pages_used + steps.pages_idle
    need = limits.request_pages + limits.growth_pages * steps.running
    tokens = steps.prefill_tokens + steps.decode_tokens
    nothing = np.zeros(len(free), np.bool_)
    causes = {
        Held.NOTHING: steps.waiting == 0,
        Held.MAX_SEQS: steps.running >= limits.max_seqs if limits.max_seqs else nothing,
        Held.CHUNK: tokens >= _FULL * limits.chunk_size if limits.chunk_size else nothing,
        Held.PAGES: free < need,
    }
    return np.select(list(causes.values()), list(causes), Held.ORDER).astype(np.int8)
