"""The least time a job can take: all compute and all KV reads, perfectly spread over each other.

A bound, not a prediction: it knows the job's totals and no schedule.
"""

from dataclasses import dataclass

import numpy as np

from blendrun.cost.arrays import Numbers, as_floats
from blendrun.cost.cost_model import CostModel
from blendrun.errors import CapacityError


@dataclass(frozen=True, slots=True)
class Optimum:
    """Totals of a job in seconds, and the bounds that follow from them."""

    compute_s: float  # T_comp: every request on its own, nothing shared
    shared_compute_s: float  # (1 − s)·T_comp: shared prefixes computed once
    memory_s: float  # T_mem: every request reads all of its K and V
    once_memory_s: float  # the least where each step reads a shared prefix once for all
    sharing_frac: float  # s, measured on compute
    density: float | None  # (1 − s)·T_comp / T_mem; None where no KV is read
    min_steps: int
    ideal_s: float  # the larger of the two: perfect overlap, weights cost nothing to read
    # at the machine's own overlap, weights read once per step, fixed cost of each
    practical_s: float
    once_practical_s: float  # likewise, with once_memory_s

    def __add__(self, other: "Optimum") -> "Optimum":
        """The bounds of two jobs that run one after the other."""
        compute_s, memory_s = self.compute_s + other.compute_s, self.memory_s + other.memory_s
        shared_s = self.shared_compute_s + other.shared_compute_s
        return Optimum(
            compute_s=compute_s,
            shared_compute_s=shared_s,
            memory_s=memory_s,
            once_memory_s=self.once_memory_s + other.once_memory_s,
            sharing_frac=1 - shared_s / compute_s if compute_s > 0 else 0.0,
            density=shared_s / memory_s if memory_s > 0 else None,
            min_steps=self.min_steps + other.min_steps,
            ideal_s=self.ideal_s + other.ideal_s,
            practical_s=self.practical_s + other.practical_s,
            once_practical_s=self.once_practical_s + other.once_practical_s,
        )


def optimum(
    compute_s: float,
    memory_s: float,
    min_steps: int,
    cost: CostModel,
    saved_compute_s: float = 0.0,
    once_memory_s: float | None = None,
) -> Optimum:
    """Bounds of a job with these totals.

    `compute_s` and `memory_s` are sums over all requests; `saved_compute_s` is the prefill
    compute that sharing spares; `min_steps` the fewest engine steps possible (`min_steps()`);
    `once_memory_s` None: nothing is shared.
    """
    shared_s = compute_s - saved_compute_s
    busy_s = cost.with_weight_floor(shared_s, min_steps * cost.weight_read_s)
    once_s = memory_s if once_memory_s is None else once_memory_s
    fixed_s = min_steps * cost.hardware.step_overhead_s
    return Optimum(
        compute_s=compute_s,
        shared_compute_s=shared_s,
        memory_s=memory_s,
        once_memory_s=once_s,
        sharing_frac=saved_compute_s / compute_s if compute_s > 0 else 0.0,
        density=shared_s / memory_s if memory_s > 0 else None,
        min_steps=min_steps,
        ideal_s=max(shared_s, memory_s),
        practical_s=float(cost.overlapped_s(busy_s, memory_s)) + fixed_s,
        once_practical_s=float(cost.overlapped_s(busy_s, once_s)) + fixed_s,
    )


def min_steps(
    own_len: Numbers, output_len: Numbers, kv_capacity_tokens: int, cost: CostModel
) -> int:
    """Fewest engine steps for these requests: KV memory filled in every one, or the longest alone.

    `own_len` are prompt tokens that no other request shares (tokens of shared prefixes take
    memory, too; leaving them out keeps this a lower bound). A request lives for output_len steps
    in `product`, for output_len + 1 in `paper`, where no token comes out of the prefill step.

    Raises:
        CapacityError: there is no memory for KV pages.
    """
    if kv_capacity_tokens < 1:
        raise CapacityError(
            f"{cost.shape.name} leaves no memory for KV pages on {cost.hardware.name}",
            "take a smaller model or a machine with more memory",
        )
    own, output = as_floats(own_len), as_floats(output_len)
    if not output.size:
        return 0
    extra = 1 if cost.flavour == "paper" else 0
    token_steps = float(np.sum(own * output + output * (output - 1 + 2 * extra) / 2))
    return max(int(np.ceil(token_steps / kv_capacity_tokens)), int(output.max()) + extra)
