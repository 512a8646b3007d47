"""What a batcher says of the work that is left."""

import numpy as np

from blendrun.engine.rank_figures import RankFigures
from blendrun.schedule.step.expectations import enough_ended
from blendrun.schedule.step.state import State


def figures_of(
    state: State, stepped_s: float, expected_s: float, output_tokens: int
) -> RankFigures:
    """The figures of a rank with this batcher; seconds and tokens as in `RankFigures`."""
    counts, limits, strata = state.counts, state.limits, state.lengths.strata
    decodes = max(float(counts["rest_decodes"]), 0.0)
    knows = (strata["finished"] > 0) & (strata["finished"] >= enough_ended(strata["total"]))
    return RankFigures(
        int(counts["num_running"]),
        int(counts["num_waiting"]),
        max(float(counts["prefill_s"]), 0.0) + decodes * float(limits["decode_s"]),
        max(float(counts["rest_context"]), 0.0) * float(limits["context_s"]),
        stepped_s,
        expected_s,
        output_tokens,
        np.where(knows, strata["mean_len"], 0.0),
    )
