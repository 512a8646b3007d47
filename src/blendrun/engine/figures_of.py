"""What a batcher says of the work that is left."""

import numpy as np

from blendrun.engine.rank_figures import RankFigures
from blendrun.schedule.step.expectations import enough_ended
from blendrun.schedule.step.outputs import Outputs
from blendrun.schedule.step.state import State


def figures_of(
    state: State, stepped_s: float, expected_s: float, output_tokens: int
) -> RankFigures:
    """The figures of a rank with this batcher; seconds and tokens as in `RankFigures`."""
    counts, limits, strata = state.counts, state.limits, state.lengths.strata
    decodes = max(float(counts["rest_decodes"]), 0.0)
    compute_s = max(float(counts["prefill_s"]), 0.0) + decodes * float(limits["decode_s"])
    knows = (strata["finished"] > 0) & (strata["finished"] >= enough_ended(strata["total"]))
    knows |= strata["told"]
    free_pages = int(counts["free_pages"] + counts["idle_pages"] - counts["promised_pages"])
    return RankFigures(
        int(counts["num_running"]),
        int(counts["num_waiting"]),
        compute_s,
        max(float(counts["rest_context"]), 0.0) * float(limits["context_s"]),
        _last_steps(state) * float(limits["weight_s"]),
        bool(limits["learns"]) and int(counts["num_unlearned"]) > 0,
        free_pages * int(limits["page_size"]),
        stepped_s,
        expected_s,
        output_tokens,
        np.where(knows, strata["mean_len"], 0.0),
        Outputs.of(state),
    )


def _last_steps(state: State) -> int:
    """Steps until the last of the running requests is expected to end."""
    running, step = int(state.counts["num_running"]), int(state.counts["step"])
    if not running:
        return 0
    last = state.ordered.by_end[running - 1]
    return max(int(state.slots["end_step"][last]) - step, 0)
