"""Make the columns of a batcher, for the requests that are to run."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.cost.step_prices import StepPrices
from blendrun.schedule.step.expectations import bin_edges
from blendrun.schedule.step.state import (
    COUNTS,
    DONE,
    FIXED,
    LIMITS,
    NOBODY,
    NODE,
    ONE_LIST,
    RATIO,
    REQUEST,
    ROOT,
    SLOT,
    STRATUM,
    TWO_ENDED,
    TWO_LISTS,
    UNLEARNED,
    WAITING,
    Lengths,
    Lists,
    Ordered,
    State,
    Step,
)
from blendrun.schedule.step.units import merged
from blendrun.tree.annotate import Float64, sum_to_leaf
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import top_subtrees

ADMISSION = {"one list": ONE_LIST, "two-ended": TWO_ENDED, "two lists": TWO_LISTS}
BUDGET = {"fixed": FIXED, "ratio": RATIO}
_SAMPLE_FRAC, _SAMPLE_LEAST = 0.01, 16  # of each stratum


@dataclass(frozen=True, slots=True)
class BatchLimits:
    num_pages: int
    page_size: int  # tokens
    chunk_size: int  # prefill tokens of a step at most; with a fixed budget, all its tokens
    max_seqs: int  # running requests at most
    tile: int = 1  # tokens; a GEMM costs as much as one rounded up to this
    first_in_prefill: bool = True  # False: the paper's convention, no token from a prefill step


@dataclass(frozen=True, slots=True)
class Steering:
    """How requests come in, and what a step's prefill is cut to."""

    admission: str = "one list"  # a key of ADMISSION
    budget: str = "fixed"  # a key of BUDGET
    learns: bool = False  # lengths, from the run itself
    left_slack: float = 2.5  # left share of memory, over what it needs on average
    overcommit: float = 1.0  # of the cap for what is only projected
    seed: int = 0


@dataclass(frozen=True, slots=True)
class BatcherJob:
    """N requests, by request number, over their prefix tree."""

    tree: PrefixTree
    order: Int32  # [≤ N] requests to run, in planned order
    max_output: Int32  # [N]
    planned_output: Float64  # [N] output tokens expected
    learned: npt.NDArray[np.bool_]  # [N] the expectation may be replaced by a learned one
    compute_s: Float64  # [N] with its share of shared prefixes
    memory_s: Float64  # [N] KV reads
    prefill_s: Float64  # [N] compute of the prompt alone, likewise
    footprint: Float64  # [N] KV tokens of its own on average
    root_density: float
    # outputs known before the run: a request of the same stratum, and how long [M]
    seen_request: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    seen_output: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    # [N] output tokens that are there, to be computed once more with the prompt; None: of none
    generated: Int32 | None = None
    # [N] place in planned order, of requests that may come later, too; None: they come last
    place: Int32 | None = None

    def without(self, requests: Int32) -> "BatcherJob":
        """The job less some of its requests."""
        return replace(self, order=self.order[~np.isin(self.order, requests)])


def new_state(
    job: BatcherJob, limits: BatchLimits, prices: StepPrices, how: Steering, share: bool = True
) -> State:
    """A state in which nothing has run; `share=False` gives every request its own pages."""
    counts = np.zeros(1, COUNTS).view(np.recarray)
    rules = _limits(job, limits, prices, how)
    stratum, strata = _strata(job, how)
    nodes = _nodes(job.tree, job.order, share)
    requests = _requests(job, stratum, share)
    if share and prices.spared_s > 0:
        requests["spared_len"] = _spared_len(job.tree, nodes["waiting"], prices)
    lengths = _lengths(job, stratum, strata, int(job.max_output.max(initial=1)))
    state = State(
        requests,
        nodes,
        _slots(limits.max_seqs),
        Ordered(
            np.zeros(limits.max_seqs, np.int32),
            np.zeros(limits.max_seqs, np.int32),
            np.arange(limits.max_seqs - 1, -1, -1, dtype=np.int32),
            np.zeros(job.tree.num_nodes, np.int32),
        ),
        _lists(job, np.where(_is_seen(lengths)[stratum], UNLEARNED, stratum), how),
        lengths,
        Step(
            np.zeros(limits.max_seqs, np.int32),
            np.zeros(limits.max_seqs, np.int32),
            np.zeros(limits.max_seqs, np.int32),
            np.zeros(limits.max_seqs, np.int32),
            np.zeros(limits.max_seqs, np.int32),
            np.zeros(job.tree.num_nodes, np.int32),
        ),
        counts[0],
        rules[0],
    )
    counts["free_pages"] = limits.num_pages
    counts["num_waiting"] = len(job.order)
    counts["at_right"] = len(state.lists.left)
    counts["next_refresh"] = 16
    counts["bias"] = 1.0
    counts["prefill_s"] = _unique_prefill_s(job, prices, nodes, share)
    counts["prefill_s"] += _generated_prefill_s(job, prices)
    return state


def _limits(
    job: BatcherJob, limits: BatchLimits, prices: StepPrices, how: Steering
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    row = np.zeros(1, LIMITS).view(np.recarray)
    row["num_pages"], row["page_size"] = limits.num_pages, limits.page_size
    row["max_seqs"], row["chunk_size"] = limits.max_seqs, limits.chunk_size
    row["tile"] = limits.tile
    row["first_in_prefill"] = limits.first_in_prefill
    row["admission"], row["budget"] = ADMISSION[how.admission], BUDGET[how.budget]
    row["learns"] = how.learns and bool(job.learned[job.order].any())
    for name in ("token_s", "pair_s", "decode_s", "head_s", "context_s", "spared_s", "weight_s"):
        row[name] = getattr(prices, name)
    row["root_density"], row["left_slack"] = job.root_density, how.left_slack
    row["overcommit"] = how.overcommit
    return row


def _strata(job: BatcherJob, how: Steering) -> tuple[Int32, int]:
    if not how.learns:
        return np.full(job.tree.num_requests, UNLEARNED, np.int32), 1
    stratum, nodes = top_subtrees(job.tree)
    return np.where(job.learned, stratum, UNLEARNED).astype(np.int32), len(nodes)


def _requests(job: BatcherJob, stratum: Int32, share: bool) -> Any:
    tree = job.tree
    n = tree.num_requests
    above = tree.parent[tree.leaf_node]
    rows = np.zeros(n, REQUEST).view(np.recarray)
    rows["prompt_len"] = rows["known_len"] = tree.prompt_len
    if job.generated is not None:
        rows["known_len"] += job.generated
    rows["branch_len"] = tree.depth[above] if share else 0
    rows["node"] = above if share else ROOT
    rows["num_cached"] = -1
    rows["max_output"], rows["planned_output"] = job.max_output, job.planned_output
    rows["stratum"] = stratum
    rows["footprint"] = job.footprint
    rows["prefill_s"] = job.prefill_s
    rows["status"] = DONE
    rows["status"][job.order] = WAITING
    return rows


def _spared_len(tree: PrefixTree, sharers: Int32, prices: StepPrices) -> Float64:
    """Prompt tokens [N] whose reads a request is spared if all `sharers` [K] decode at once.

    A token that costs a part of a read counts as that part.
    """
    others = 1 - 1 / np.maximum(sharers, 1)
    spared = sum_to_leaf(tree.parent, tree.edge_len * others)[tree.leaf_node]
    return np.asarray(spared * prices.spared_s / prices.context_s)


def _nodes(tree: PrefixTree, order: Int32, share: bool) -> Any:
    rows = np.zeros(tree.num_nodes, NODE).view(np.recarray)
    rows["parent"], rows["start"], rows["end"] = tree.parent, tree.edge_start, tree.depth
    rows["waiting"] = tree.count_below(order) if share else 0
    rows["owner"] = NOBODY
    return rows


def _slots(max_seqs: int) -> Any:
    rows = np.zeros(max_seqs, SLOT).view(np.recarray)
    rows["request"] = NOBODY
    return rows


def _lists(job: BatcherJob, stratum: Int32, how: Steering) -> Lists:
    order = np.array(job.order, np.int32)
    asks = how.learns and ADMISSION[how.admission] == TWO_LISTS
    sample = sampled(order, stratum, how.seed) if asks else np.zeros(0, np.int32)
    return with_lists(
        Lists(
            sample,
            order,
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros(len(order), np.int32),
            np.zeros(len(order), np.int32),
            units_of(job, order if ADMISSION[how.admission] == TWO_ENDED else order[:0]),
        ),
        order,
        np.zeros(0, np.int32),
    )


def units_of(job: BatcherJob, order: Int32) -> Any:
    """Stretches of a sequence, for the scan from both ends."""
    own_len = job.tree.edge_len[job.tree.leaf_node]
    return merged(job.compute_s[order], job.memory_s[order], own_len[order])


def with_lists(lists: Lists, left: Int32, right: Int32) -> Lists:
    """The same lists with another division into left and right."""
    return lists._replace(
        left=left,
        right=right,
        next_right=np.arange(len(right) + 1, dtype=np.int32),
        last_right=np.arange(len(right) + 1, dtype=np.int32),
    )


def sampled(order: Int32, stratum: Int32, seed: int) -> Int32:
    """A random 1 % of each stratum, at least 16, the strata in turn."""
    rng = np.random.default_rng(seed)
    shuffled = order[rng.permutation(len(order))]
    shuffled = shuffled[stratum[shuffled] != UNLEARNED]
    by_stratum = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    _, start, count = np.unique(stratum[by_stratum], return_index=True, return_counts=True)
    turn = np.arange(len(by_stratum)) - np.repeat(start, count)
    size = np.repeat(np.maximum(np.ceil(_SAMPLE_FRAC * count), _SAMPLE_LEAST), count)
    chosen = turn < size
    sample, turn = by_stratum[chosen], turn[chosen]
    in_turn: Int32 = sample[np.argsort(turn, kind="stable")].astype(np.int32)
    return in_turn


def _lengths(job: BatcherJob, stratum: Int32, strata: int, longest: int) -> Lengths:
    edge = bin_edges(longest)
    bins = len(edge) - 1
    learned = stratum[job.order]
    planned = job.planned_output[job.order][learned != UNLEARNED]
    learned = learned[learned != UNLEARNED]
    total = np.bincount(learned, planned, strata)
    prior = total / np.maximum(np.bincount(learned, minlength=strata), 1)
    rows = np.zeros(strata, STRATUM).view(np.recarray)
    rows["prior"] = rows["mean_len"] = rows["listed_mean"] = np.maximum(prior, 1.0)
    rows["total"] = np.bincount(learned, minlength=strata)
    rows["square_len"] = 2 * rows["prior"] ** 2
    rows["max_output"] = 1.0
    is_learned = stratum != UNLEARNED
    np.maximum.at(rows["max_output"], stratum[is_learned], job.max_output[is_learned])
    seen = stratum[job.seen_request]
    place = np.clip(np.searchsorted(edge, job.seen_output, side="right") - 1, 0, bins - 1)
    events = np.zeros((strata, bins))
    np.add.at(events, (seen[seen != UNLEARNED], place[seen != UNLEARNED]), 1)
    rows["finished"] = events.sum(axis=1)
    return Lengths(
        edge=edge,
        events=np.zeros((strata, bins)),
        before=events,
        elsewhere=np.zeros((strata, bins)),
        running_elsewhere=np.zeros((strata, bins)),
        survival=np.ones((strata, bins + 1)),
        tail=np.zeros((strata, bins + 1)),
        tail_t=np.zeros((strata, bins + 1)),
        strata=rows,
    )


def _is_seen(lengths: Lengths) -> npt.NDArray[np.bool_]:
    """Which strata [S] need no sample at the head of the run: enough of their outputs is known."""
    return np.asarray(lengths.strata["finished"] >= _SAMPLE_LEAST)


def _unique_prefill_s(job: BatcherJob, prices: StepPrices, nodes: Any, share: bool) -> float:
    """Compute of all prompts, every shared prefix once."""
    tree = job.tree
    if share:
        needed = nodes["waiting"] > 0
        start, end = tree.edge_start[needed].astype(float), tree.depth[needed].astype(float)
    else:
        end = tree.prompt_len[job.order].astype(float)
        start = np.zeros_like(end)
    chunks = prices.token_s * (end - start) + prices.pair_s * (end**2 - start**2)
    return float(chunks.sum()) + prices.head_s * len(job.order)


def _generated_prefill_s(job: BatcherJob, prices: StepPrices) -> float:
    """Compute of the output tokens that are there."""
    if job.generated is None:
        return 0.0
    start = job.tree.prompt_len[job.order].astype(float)
    end = start + job.generated[job.order]
    return float((prices.token_s * (end - start) + prices.pair_s * (end**2 - start**2)).sum())
