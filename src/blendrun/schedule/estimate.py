"""How long a planned job will take: the bound, what orders reach of it, and how sure that is.

The range holds what is not known of output lengths, and what runs of the order lost in simulation
to ramp-up, tail and imbalance inside steps. How far off a profile of a data sheet is, is not in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.cost.optimum import Optimum
from blendrun.schedule.lengths import KNOWN
from blendrun.schedule.partition import Part
from blendrun.schedule.plan_record import PlanCounts, PlanTimes
from blendrun.schedule.priced_job import PricedJob
from blendrun.tree.prefix_tree import Int32


class _Reached(NamedTuple):
    """Share of the bound, with the prefixes that it computes again, that simulated runs reached."""

    worst: float
    usual: float
    best: float


# from benchmarks/paper, four traces; for blend also from other seeds and mixes of 20 K to 400 K
# requests. The price of recomputed prefixes is taken out of those of random; arrival, which is not
# in it on overlapping hardware, is taken to be like random.
_REACHED = {
    "blendserve": _Reached(0.80, 0.84, 0.88),
    "dfs": _Reached(0.66, 0.70, 0.73),
    "dfs-sets": _Reached(0.60, 0.64, 0.68),
    "arrival": _Reached(0.70, 0.78, 0.84),
    "random": _Reached(0.70, 0.78, 0.84),
}
_BLEND_KNOWN, _BLEND_LEARNED = _Reached(0.97, 0.99, 1.0), _Reached(0.87, 0.97, 0.99)
_RATIO_BUDGET = _Reached(0.88, 0.94, 0.97)  # one list, every step at the job's own mix
# without overlap the mix inside a step does not matter; small steps and the tail do. Orders that
# keep prefixes together reached 0.99 to 1.02 on a calibrated CPU, 472 to 6,000 prompts
_NO_OVERLAP = _Reached(0.85, 0.98, 1.03)


def predict(
    job: PricedJob, counts: PlanCounts, policy: str, budget: str, parts: Sequence[Part] = ()
) -> PlanTimes:
    """Times of a job in an order that computes `counts.computed_prompt_tokens` prompt tokens.

    Of several ranks, with these `parts`, the last one to end counts.
    """
    reached = _reached(job, counts, policy, budget)
    lost_tokens = counts.computed_prompt_tokens - job.tree.num_unique_tokens
    best = job.optimum()
    decode_s = float(job.cost.decode_compute_s(job.tree.prompt_len, job.output_len).sum())
    # the last rank, over an equal share of the whole
    whole_s = float(job.cost.overlapped_s(best.shared_compute_s, best.memory_s))
    last_s = max((part.predicted_s for part in parts), default=0.0)
    share = max(last_s / whole_s, 1 / job.dp) if whole_s > 0 else 1 / job.dp
    low, high = (_with_lengths(job, ends) for ends in (job.lengths.low, job.lengths.high))
    return PlanTimes(
        compute_s=best.compute_s,
        shared_compute_s=best.shared_compute_s,
        memory_s=best.memory_s,
        density=best.density,
        decode_compute_s=decode_s,
        ideal_s=best.ideal_s / job.dp,
        practical_s=best.practical_s / job.dp,
        once_memory_s=best.once_memory_s,
        once_practical_s=best.once_practical_s / job.dp,
        predicted_s=_busy_s(job, best, lost_tokens) * share / reached.usual,
        predicted_low_s=_busy_s(low, low.optimum(), lost_tokens) * share / reached.best,
        predicted_high_s=_busy_s(high, high.optimum(), lost_tokens) * share / reached.worst,
    )


def least_s(job: PricedJob) -> float:
    """Predicted seconds of a job that shares all it can, before what an order loses."""
    return _busy_s(job, job.optimum(), 0) / job.dp


def _reached(job: PricedJob, counts: PlanCounts, policy: str, budget: str) -> _Reached:
    if not job.cost.hardware.overlaps:
        return _NO_OVERLAP
    if policy == "blend":
        known = sum(counts.lengths_from.get(origin, 0) for origin in KNOWN)
        return _BLEND_KNOWN if 2 * known > counts.requests else _BLEND_LEARNED
    return _RATIO_BUDGET if budget == "ratio" else _REACHED[policy]


def _with_lengths(job: PricedJob, tokens: Int32) -> PricedJob:
    return replace(job, lengths=replace(job.lengths, tokens=tokens))


def _small_steps_s(cost: CostModel, tokens: int, min_steps: int) -> float:
    """What products in steps of the mean size take beyond the best rate, where it was measured."""
    hardware = cost.hardware
    if not hardware.gemm_tokens or not tokens:
        return 0.0
    steps = max(min_steps, tokens / hardware.chunk_limit)
    each, whole = float(cost.step_products_s(tokens / steps)), float(cost.prefill_s(0, 1))
    return max(steps * each - tokens * whole, 0.0)


def _busy_s(job: PricedJob, best: Optimum, lost_tokens: int) -> float:
    """Rank-seconds of the practical optimum with `lost_tokens` prompt tokens computed again.

    A lost token costs the mean of what a shared one saves.
    """
    saved = max(job.tree.num_prompt_tokens - job.tree.num_unique_tokens, 1)
    busy_s = best.shared_compute_s + lost_tokens / saved * (best.compute_s - best.shared_compute_s)
    hardware, outputs = job.cost.hardware, int(job.output_len.sum(dtype=np.int64))
    tokens = job.tree.num_unique_tokens + lost_tokens + outputs
    weight_s = float(job.cost.step_weight_read_s(tokens / max(best.min_steps, 1)))
    busy_s = max(busy_s, best.min_steps * weight_s)
    overhead_s = best.min_steps * hardware.step_overhead_s
    overhead_s += tokens * hardware.token_overhead_s + outputs * hardware.output_overhead_s
    steps = max(best.min_steps, tokens / hardware.chunk_limit)
    overhead_s += steps * float(job.cost.collective_s(tokens / steps)) if tokens else 0.0
    overhead_s += _small_steps_s(job.cost, tokens, best.min_steps)
    read_s = best.memory_s - job.cost.spared_frac * (best.memory_s - best.once_memory_s)
    return float(job.cost.overlapped_s(busy_s, read_s)) + overhead_s
