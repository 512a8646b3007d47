"""What a workload turned out to be: counts, token totals, density and sharing, also by set."""

import math
from dataclasses import dataclass

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a workload, or of one of its sets on its own."""

    name: str  # of the set; "all" for the workload
    requests: int
    prompt_tokens: int
    unique_prompt_tokens: int  # every shared prefix counted once
    output_tokens: int
    max_tokens: int  # the largest limit
    density: float | None  # (1 − s)·T_comp / T_mem; None where no KV is read
    sharing: float  # s, measured on compute

    @property
    def mean_prompt_len(self) -> float:
        return self.prompt_tokens / max(self.requests, 1)

    @property
    def mean_output_len(self) -> float:
        return self.output_tokens / max(self.requests, 1)


def summarize(workload: Workload, cost: CostModel) -> tuple[Summary, tuple[Summary, ...]]:
    """Figures of the whole workload, and of each set by itself."""
    by_set = tuple(
        _figures(name, workload.only(i), cost) for i, name in enumerate(workload.set_names)
    )
    return _figures("all", workload, cost), by_set


def _figures(name: str, workload: Workload, cost: CostModel) -> Summary:
    totals = workload.totals(cost)
    return Summary(
        name=name,
        requests=workload.num_requests,
        prompt_tokens=int(workload.prompt_len.sum(dtype=np.int64)),
        unique_prompt_tokens=workload.tree().num_unique_tokens,
        output_tokens=int(workload.output_len.sum(dtype=np.int64)),
        max_tokens=int(workload.max_tokens.max(initial=0)),
        density=totals.density if math.isfinite(totals.density) else None,
        sharing=totals.sharing,
    )
