"""Divide a job among data-parallel ranks: equal predicted time, each with the job's own mix.

Paper section 5.5: the one tree is cut, so that a prefix is computed twice only where a cut parts
it. Every rank gets one run of leaves of the tree's dense side and one of its sparse side: two
runs for each of N ranks, 2 N - 1 cuts in all.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.schedule.cuts import cut
from blendrun.schedule.leaf_row import LeafRow
from blendrun.tree.annotate import Annotations, Float64, annotate
from blendrun.tree.density_sides import dense_side_first
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import top_subtrees

_REPEATED_FRAC = 0.005  # of a top subtree's compute, above which its prefix is dear to repeat


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank does, with the prefixes that other ranks compute, too."""

    requests: Int32  # in planned order
    compute_s: float
    memory_s: float
    predicted_s: float  # compute and KV reads perfectly mixed, nothing else


def partition(
    tree: PrefixTree,
    sequence: Int32,
    output_len: Int32,
    cost: CostModel,
    parts: int,
    guessed: npt.NDArray[np.bool_] | None = None,
) -> list[Part]:
    """`parts` parts of `sequence`, some of them empty where there are too few requests.

    A request that takes as long as an equal share of what it and all shorter ones take has a rank
    of its own. The predicted time of every other part is within 2 % of equal, unless a single
    request forces more: then it is off by no more than the longest of these requests takes by
    itself, with its whole prompt. Equal is the time for an equal share of the compute and KV reads
    of these parts, with what they repeat: at most one root-to-leaf path for each cut.

    Args:
        tree: of all N requests, as the batcher will share it.
        sequence: int32[≤ N] requests to divide, in planned order, which a part keeps.
        output_len: int32[N] expected output tokens.
        guessed: [N] requests of whose output length nothing is known. Where that is most of them,
            every top subtree is divided evenly instead, as its prompts alone allow no better: a
            set of long outputs that nobody expects would all go to one rank.
    """
    priced = annotate(tree, output_len, cost)
    if guessed is not None and 2 * np.count_nonzero(guessed[sequence]) > len(sequence):
        return _evenly(tree, sequence, output_len, cost, priced, parts)
    alone = _of_their_own(tree, sequence, output_len, cost, priced, parts)
    absent = np.setdiff1d(np.arange(tree.num_requests, dtype=np.int32), sequence)
    row = LeafRow.of(*dense_side_first(tree, priced)).without(np.concatenate([alone, absent]))
    mixed = row.mixed(tree.prompt_len, output_len, cost)
    ends, compute_s = cut(mixed, parts - len(alone))

    rank_of = np.empty(tree.num_requests, np.int64)
    in_turn = row.requests[row.turns(mixed.dense_before)]
    rank_of[in_turn] = np.repeat(np.arange(len(compute_s)), np.diff(ends))
    rank_of[alone] = np.arange(len(compute_s), parts)
    alone_s = cost.compute_s(tree.prompt_len, output_len)[alone]
    compute_s = np.concatenate([compute_s, alone_s])
    return _parts(sequence, rank_of, compute_s, priced, cost)


def _evenly(
    tree: PrefixTree,
    sequence: Int32,
    output_len: Int32,
    cost: CostModel,
    priced: Annotations,
    parts: int,
) -> list[Part]:
    """Runs of equal expected time, one for each part, of each top subtree.

    Subtrees whose prefix is dear to compute once for every part are divided as if they were one.
    """
    order = tree.leaf_order[np.isin(tree.leaf_order, sequence)]
    group = _cut_as_one(tree, order, priced, parts)
    seconds = cost.overlapped_s(priced.request_compute_s, priced.request_memory_s)
    order = order[np.argsort(group[order], kind="stable")]
    total = np.bincount(group[order], seconds[order])
    before = (np.cumsum(total) - total)[group[order]]
    middle = np.cumsum(seconds[order]) - seconds[order] / 2 - before
    run = np.clip(middle / total[group[order]] * parts, 0, parts - 1).astype(np.int64)
    rank_of = np.full(tree.num_requests, -1)  # of those that are divided
    rank_of[order] = (run + group[order]) % parts  # in turn, for subtrees of few requests
    row = LeafRow.of(tree, 0)
    compute_s = np.zeros(parts)
    for rank in range(parts):
        mine = row.without(np.flatnonzero(rank_of != rank).astype(np.int32))
        compute_s[rank] = mine.added_s(tree.prompt_len, output_len, cost).sum()
    return _parts(sequence, rank_of, compute_s, priced, cost)


def _cut_as_one(tree: PrefixTree, order: Int32, priced: Annotations, parts: int) -> Int32:
    """Which requests are divided together, [N]: a top subtree, or all whose prefixes are dear.

    Those are longer than what prompts have of their own, and their subtree is small for them.
    """
    stratum, nodes = top_subtrees(tree)
    compute_s = np.bincount(stratum[order], priced.request_compute_s[order], len(nodes))
    prompt_tokens = np.bincount(stratum[order], tree.prompt_len[order], len(nodes))
    shared_tokens = np.bincount(stratum[order], minlength=len(nodes)) * tree.depth[nodes]
    is_dear = (parts - 1) * priced.prefix_s[nodes] > _REPEATED_FRAC * compute_s
    is_dear &= 2 * shared_tokens > prompt_tokens
    group: Int32 = np.where(is_dear, len(nodes), np.arange(len(nodes)))[stratum].astype(np.int32)
    return group


def _parts(
    sequence: Int32,
    rank_of: npt.NDArray[np.int64],
    compute_s: Float64,
    priced: Annotations,
    cost: CostModel,
) -> list[Part]:
    """The parts that belong to `rank_of`, [N]; `compute_s` is of each part."""
    parts = len(compute_s)
    memory_s = np.bincount(rank_of[sequence], priced.request_memory_s[sequence], parts)
    seconds = cost.overlapped_s(compute_s, memory_s)
    by_rank = sequence[np.argsort(rank_of[sequence], kind="stable")]
    counts = np.bincount(rank_of[sequence], minlength=parts)
    requests = np.split(by_rank, np.cumsum(counts)[:-1])
    figures = zip(requests, compute_s.tolist(), memory_s.tolist(), seconds.tolist(), strict=True)
    return [Part(*figure) for figure in figures]


def _of_their_own(
    tree: PrefixTree,
    sequence: Int32,
    output_len: Int32,
    cost: CostModel,
    priced: Annotations,
    parts: int,
) -> Int32:
    """Requests that take as long as an equal share of what they and all shorter ones take.

    Without the prefixes that they share, which any rank that has such a request computes.
    """
    compute_s = float(priced.request_compute_s[sequence].sum())
    prompt_len = tree.prompt_len
    memory_s = cost.memory_s(prompt_len, output_len)
    own_s = cost.prefill_s(tree.edge_start[tree.leaf_node], prompt_len) + cost.head_s(1)
    own_s = own_s + cost.decode_compute_s(prompt_len, output_len)
    alone_s = cost.overlapped_s(own_s, memory_s)
    memory_left = float(memory_s[sequence].sum())
    alone: list[int] = []
    chosen = np.sort(sequence)
    longest = chosen[np.argsort(-alone_s[chosen], kind="stable")]
    for request in longest[: parts - 1].tolist():
        share_s = float(cost.overlapped_s(compute_s, memory_left)) / (parts - len(alone))
        if alone_s[request] < share_s:
            break
        alone.append(request)
        compute_s = max(compute_s - float(own_s[request]), 0.0)
        memory_left = max(memory_left - float(memory_s[request]), 0.0)
    return np.array(alone, np.int32)
