"""Ranks that take longer than others for work of the same price."""

from dataclasses import dataclass

import numpy as np

from blendrun.report.priced_steps import PricedSteps
from blendrun.tree.annotate import Float64


@dataclass(frozen=True, slots=True)
class RankPace:
    """The slowest rank against the fastest that has at least half a mean rank's work."""

    lost_s: float  # rank-seconds of all ranks beyond the fastest one's pace
    slowest: int
    factor: float  # its seconds for a second of the fastest one, at the same price

    @classmethod
    def of(cls, steps: PricedSteps) -> "RankPace":
        ranks = max((lane.rank for lane in steps.lanes), default=0) + 1
        took_s, outside_s, fixed_s, priced_s = np.zeros((4, ranks))
        for lane in steps.lanes:
            of = lane.steps
            took_s[lane.rank] += steps.step_s[of].sum()
            outside_s[lane.rank] += steps.outside_s[of].sum()
            fixed_s[lane.rank] += steps.fixed_s[of].sum()
            priced_s[lane.rank] += steps.run_s[of].sum() + steps.collective_s[of].sum()
        # measured scheduling is a part of its own, and of the fixed costs of a profile
        return _of_sums(took_s - outside_s, priced_s + np.maximum(fixed_s - outside_s, 0.0))


def _of_sums(took_s: Float64, priced_s: Float64) -> RankPace:
    worked = priced_s > 0.5 * priced_s.mean()
    if np.count_nonzero(priced_s) < 2 or not worked.any():
        return RankPace(0.0, 0, 1.0)
    pace = took_s / np.maximum(priced_s, 1e-30)
    fastest = float(pace[worked].min())
    if fastest <= 0:
        return RankPace(0.0, 0, 1.0)
    lost_s = np.maximum(took_s - fastest * priced_s, 0.0)
    slowest = int(np.argmax(lost_s))
    return RankPace(float(lost_s.sum()), slowest, float(pace[slowest]) / fastest)
