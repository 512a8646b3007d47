"""A run over the clock in a few hundred equal spans: pictures stay small, however long it was."""

from dataclasses import dataclass, fields

import numpy as np

from blendrun.report.priced_steps import PricedSteps
from blendrun.tree.annotate import Float64

NUM_SPANS = 300


@dataclass(frozen=True, slots=True)
class Spans:
    """Columns over spans; of several ranks, means over all of them."""

    middle_s: Float64  # of each span, on the clock
    compute_frac: Float64  # of the span in which products and prefill attention are busy, …
    read_frac: Float64  # … and KV reads; where nothing overlaps, the two exclude each other
    running: Float64
    waiting: Float64
    page_use_frac: Float64
    prefill_per_step: Float64  # tokens; nan where no step is in the span
    decode_per_step: Float64

    @property
    def num_spans(self) -> int:
        return len(self.middle_s)


def spans(steps: PricedSteps, num_spans: int = NUM_SPANS) -> Spans:
    """Of all attempts, one after the other, from the first step of each to its last."""
    begin = attempt_starts(steps)
    ranks = len({lane.rank for lane in steps.lanes})
    total_s = max(float(steps.end_s[lane.steps][-1]) + begin[lane.attempt] for lane in steps.lanes)
    edges = np.linspace(0.0, total_s, num_spans + 1)
    names = [field.name for field in fields(Spans) if field.name != "middle_s"]
    sums = {name: np.zeros(num_spans) for name in [*names, "steps"]}
    for lane in steps.lanes:
        of = lane.steps
        starts = steps.start_s[of] + begin[lane.attempt]
        seconds = steps.step_s[of]
        clock = np.stack([starts, starts + seconds], axis=1).ravel()
        amounts = {
            "compute_frac": steps.busy_s[of],
            "read_frac": steps.read_s[of],
            "running": steps.running[of] * seconds,
            "waiting": steps.waiting[of] * seconds,
            "page_use_frac": steps.pages_used[of] / np.maximum(steps.num_pages[of], 1) * seconds,
            "prefill_per_step": steps.prefill_tokens[of],
            "decode_per_step": steps.decode_tokens[of],
            "steps": np.ones(len(seconds)),
        }
        for name, amount in amounts.items():
            done = np.zeros(2 * len(seconds))
            done[1::2] = np.cumsum(amount, dtype=np.float64)
            done[2::2] = done[1:-1:2]
            sums[name] += np.diff(np.interp(edges, clock, done))
    width = total_s / num_spans or 1.0
    count = sums.pop("steps")
    per_step = {"prefill_per_step", "decode_per_step"}
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = {
            name: np.where(count > 1e-9, sums[name] / count, np.nan)
            if name in per_step
            else sums[name] / (width * ranks)
            for name in names
        }
    return Spans(middle_s=(edges[:-1] + edges[1:]) / 2, **columns)


def attempt_starts(steps: PricedSteps) -> dict[int, float]:
    """When each attempt begins, if they follow each other without a gap."""
    ends: dict[int, float] = {}
    for lane in steps.lanes:
        end_s = float(steps.end_s[lane.steps].max())
        ends[lane.attempt] = max(ends.get(lane.attempt, 0.0), end_s)
    starts, now_s = {}, 0.0
    for attempt in sorted(ends):
        starts[attempt] = now_s
        now_s += ends[attempt]
    return starts
