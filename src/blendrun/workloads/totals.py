"""Seconds that requests of a set cost together, and what sharing their prefixes saves.

The sums are those of the paper's section 3.3: T_comp with nothing shared, the part of it that
falls away when every shared prefix is computed once, and T_mem.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.workloads.drawn import Drawn

Sums = npt.NDArray[np.float64]  # [3, …] compute, saved compute, memory; seconds


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a job, in seconds."""

    compute_s: float  # T_comp: nothing shared
    saved_s: float  # s·T_comp
    memory_s: float  # T_mem

    @classmethod
    def of(cls, sums: Sums) -> Self:
        """From one column of sums, float64[3]."""
        return cls(*map(float, sums))

    @property
    def density(self) -> float:
        """(1 − s)·T_comp / T_mem; infinite where no KV is read."""
        return float(density_of(np.array([self.compute_s, self.saved_s, self.memory_s])))

    @property
    def sharing(self) -> float:
        """s: share of compute that sharing saves."""
        return self.saved_s / self.compute_s if self.compute_s > 0 else 0.0


def density_of(sums: Sums) -> Sums:
    """Density for each column of `sums`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[2] > 0, (sums[0] - sums[1]) / sums[2], np.inf)


def request_sums(drawn: Drawn, cost: CostModel) -> Sums:
    """What each request adds to the sums, float64[3, n].

    The first request of the set pays the system prompt, the first of a group the group's part.
    """
    shared_s = cost.prefill_s(0, drawn.shared_len)
    paid_s = np.zeros(len(drawn))
    if len(drawn):
        paid_s[0] += cost.prefill_s(0, drawn.system_len)
        groups, first = np.unique(drawn.group, return_index=True)
        paid_s[first] += cost.prefill_s(drawn.system_len, drawn.group_depth[groups])
    return np.stack(
        [
            cost.compute_s(drawn.prompt_len, drawn.output_len),
            shared_s - paid_s,
            cost.memory_s(drawn.prompt_len, drawn.output_len),
        ]
    )


def running_sums(per_request: Sums) -> Sums:
    """Sums over the first 0, 1, … n requests, float64[3, n + 1]."""
    sums = np.zeros((3, per_request.shape[1] + 1))
    np.cumsum(per_request, axis=1, out=sums[:, 1:])
    return sums
