"""What one of several ranks says of itself, as plain numbers for the coordinator."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.schedule.step.expectations import enough_ended
from blendrun.schedule.step.state import State


@dataclass(frozen=True, slots=True, eq=False)
class RankFigures:
    running: int
    waiting: int
    compute_s: float  # of what is left to do, as its batcher expects, …
    memory_s: float  # … and KV reads
    stepped_s: float  # steps so far took so long, …
    expected_s: float  # … and should have taken this long
    output_tokens: int  # so far
    mean_len: npt.NDArray[np.float64]  # [S] expected output of a stratum's requests; 0: unlearned

    @classmethod
    def of(
        cls, state: State, stepped_s: float, expected_s: float, output_tokens: int
    ) -> "RankFigures":
        counts, limits, lengths = state.counts, state.limits, state.lengths
        decodes = max(float(counts["rest_decodes"]), 0.0)
        strata = lengths.strata
        knows = (strata["finished"] > 0) & (strata["finished"] >= enough_ended(strata["total"]))
        return cls(
            int(counts["num_running"]),
            int(counts["num_waiting"]),
            max(float(counts["prefill_s"]), 0.0) + decodes * float(limits["decode_s"]),
            max(float(counts["rest_context"]), 0.0) * float(limits["context_s"]),
            stepped_s,
            expected_s,
            output_tokens,
            np.where(knows, strata["mean_len"], 0.0),
        )
