"""From a plan's requests to what the batcher wants to know of them."""

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.schedule.step.begin import BatcherJob, Steering
from blendrun.tree.annotate import annotate
from blendrun.tree.prefix_tree import Int32, PrefixTree


def batcher_job(
    tree: PrefixTree,
    order: Int32,
    max_output: Int32,
    expected_output: Int32,
    learned: npt.NDArray[np.bool_],
    cost: CostModel,
    seen: tuple[Int32, Int32] | None = None,
    generated: Int32 | None = None,
    sequence: Int32 | None = None,
) -> BatcherJob:
    """Price the requests of `order` for the batcher.

    Args:
        order: [≤ N] requests to run, in planned order.
        max_output, expected_output, learned: [N]; see `BatcherJob`.
        seen: outputs known before: requests of the same stratum, and their lengths.
        generated: [N] output tokens that are there; None: of no request.
        sequence: [N] requests in planned order, those that come later, too; None: in no order.
    """
    priced = annotate(tree, expected_output, cost)
    decode_s = cost.decode_compute_s(tree.prompt_len, expected_output)
    own_len = tree.edge_len[tree.leaf_node]
    nothing = np.zeros(0, np.int32)
    seen_request, seen_output = seen or (nothing, nothing)
    return BatcherJob(
        tree=tree,
        order=order,
        max_output=max_output,
        planned_output=expected_output.astype(np.float64),
        learned=learned,
        compute_s=priced.request_compute_s,
        memory_s=priced.request_memory_s,
        prefill_s=priced.request_compute_s - decode_s,
        footprint=own_len + expected_output / 2,
        root_density=priced.root_density,
        seen_request=seen_request,
        seen_output=seen_output,
        generated=generated,
        place=None if sequence is None else np.argsort(sequence).astype(np.int32),
    )


def fits_at_once(job: BatcherJob, num_tokens: int) -> bool:
    """Whether `num_tokens` of KV hold all requests of a job at their expected length."""
    output_len = float(job.planned_output[job.order].sum())
    return job.tree.num_unique_tokens + output_len <= num_tokens


def steering(
    admission: str,
    budget: str,
    cost: CostModel,
    learns: bool,
    seed: int = 0,
    all_fits: bool = False,
) -> Steering:
    """How to steer on this machine.

    `budget` "auto" is the ratio for two lists on hardware that overlaps compute with KV reads.
    Where it does not, the ratio inside a step does not matter, and full steps do: two lists become
    one, since requests from elsewhere would take the memory in which prefixes are shared. Only
    where `all_fits` in memory they stay two, so that no long answer is left alone at the end.
    """
    hardware = cost.hardware
    if budget == "auto":
        budget = "ratio" if admission == "two lists" and hardware.overlaps else "fixed"
    if admission == "two lists" and not hardware.overlaps and not all_fits:
        admission = "one list"
    return Steering(
        admission=admission,
        budget=budget,
        learns=learns,
        # fixed costs of a step make small steps dear: leave more memory to the right
        left_slack=2.0 if hardware.step_overhead_s > 0 else 2.5,
        overcommit=1.4 if learns else 1.0,
        seed=seed,
    )
