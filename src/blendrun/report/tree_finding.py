"""What a prefix tree shows, in one sentence."""

import numpy as np

from blendrun.report.tree_view import Figures, TreeView
from blendrun.tree.groups import groups, is_large
from blendrun.tree.prefix_tree import ROOT
from blendrun.units import count_of

_BALANCED = 1.05  # times; below it, compute and KV reads count as equal


def finding(view: TreeView, root: int) -> str:
    """The sentence for the whole job, or for the subtree of another node."""
    if not view.job.requests:
        return "There is no request in this plan"
    if root == ROOT:
        return f"{_sharing(view)}; {_balance(view.job)}"
    of = view.row(root).figures
    seconds = f"{of.part_of(view.job):.0%} of the job's compute and KV reads"
    return f"Node {root}: {count_of(of.requests, 'request')}, {seconds}"


def _sharing(view: TreeView) -> str:
    tree, job = view.tree, view.job
    nodes = groups(tree).nodes
    nodes = nodes[is_large(tree)[nodes] & (tree.edge_len[nodes] > 0)]
    # as if each group computed what lies above it, too
    within = view.figures(nodes)
    saved = within.prompt_tokens - within.unique_tokens
    saved -= int(tree.edge_start[nodes].sum(dtype=np.int64))
    total = job.prompt_tokens - job.unique_tokens
    if 2 * saved > total:
        frac = f"{saved / job.prompt_tokens:.0%} of the prompt tokens"
        return f"{count_of(len(nodes), 'group')} share{'s' * (len(nodes) == 1)} {frac}"
    if total < 0.01 * job.prompt_tokens:
        return "The prompts share next to nothing"
    return f"{total / job.prompt_tokens:.0%} of the prompt tokens are shared, by many small groups"


def _balance(job: Figures) -> str:
    if job.density is None:
        return "no KV is read"
    if job.density == 0:
        return "there is nothing to compute"
    if job.density >= _BALANCED:
        return f"compute is {job.density:.2g} times the KV reads"
    if job.density <= 1 / _BALANCED:
        return f"the KV reads are {1 / job.density:.2g} times the compute"
    return "compute and KV reads are in balance"
