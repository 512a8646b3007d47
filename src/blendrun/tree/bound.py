"""The optimum of a job: its tree and lengths against the machine."""

from blendrun.cost.cost_model import CostModel
from blendrun.cost.optimum import Optimum, min_steps, optimum
from blendrun.tree.annotate import Annotations
from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree


def job_optimum(
    tree: PrefixTree,
    output_len: Int32,
    priced: Annotations,
    cost: CostModel,
    ranks: int = 1,
    kv_tokens: int | None = None,
) -> Optimum:
    """The bound of all requests, in rank-seconds: `ranks` ranks divide it, and add their memory.

    Args:
        tree: over N requests, not split.
        output_len: int32 [N].
        priced: `annotate(tree, output_len, cost)`.
        kv_tokens: KV memory of one rank; None: what the hardware leaves.

    Raises:
        CapacityError: there is no memory for KV pages.
    """
    whole_s = float(cost.compute_s(tree.prompt_len, output_len).sum())
    shared_s, memory_s = float(priced.compute_s[ROOT]), float(priced.memory_s[ROOT])
    own_len = tree.edge_len[tree.leaf_node]
    capacity = ranks * (cost.kv_capacity_tokens if kv_tokens is None else kv_tokens)
    steps = ranks * min_steps(own_len, output_len, capacity, cost)
    return optimum(whole_s, memory_s, steps, cost, whole_s - shared_s)
