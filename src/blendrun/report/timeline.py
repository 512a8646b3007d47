"""Batch size and page use over time, in a few equal spans."""

import numpy as np
import pyarrow as pa


def timeline(steps: pa.Table, num_spans: int = 10) -> pa.Table:
    """Time-weighted means over `num_spans` spans of the run's step time.

    Args:
        steps: step records of all attempts, in order; attempts follow each other without a gap.
            Those of several ranks are taken as they began; seconds are rank-seconds then.

    Returns:
        one row per span: end_s, running, running_left, waiting, page_use_frac,
        prefill_tokens_per_s, decode_tokens_per_s.
    """
    if not steps.num_rows:
        return pa.table({})
    steps = steps.sort_by([("attempt", "ascending"), ("start_s", "ascending")])
    column = {name: steps[name].to_numpy() for name in steps.column_names}
    seconds = column["step_s"]
    ends = np.cumsum(seconds)
    edges = np.linspace(0, ends[-1], num_spans + 1)

    def total(
        values: np.ndarray[tuple[int], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Sum over each span of a step column; a step across an edge is divided by time."""
        running = np.concatenate([[0.0], np.cumsum(values)])
        at_edges = np.interp(edges, np.concatenate([[0.0], ends]), running)
        return np.diff(at_edges)

    width = np.diff(edges)
    return pa.table(
        {
            "end_s": edges[1:],
            "running": total(column["running"] * seconds) / width,
            "running_left": total(column["running_left"] * seconds) / width,
            "waiting": total(column["waiting"] * seconds) / width,
            "page_use_frac": total(column["pages_used"] / column["num_pages"] * seconds) / width,
            "prefill_tokens_per_s": total(column["prefill_tokens"].astype(float)) / width,
            "decode_tokens_per_s": total(column["decode_tokens"].astype(float)) / width,
        }
    )
