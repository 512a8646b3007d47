"""Policies behind one registry: a name, the order of requests, and how the batcher takes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from blendrun.tree.density_order import Annotate, split_by_density
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import common_root

Admission = Literal["one list", "two-ended", "two lists"]

# a beginning this small, against KV memory, stays cached whatever the order
_SYSTEM_PROMPT_FRAC = 1e-3


@dataclass(frozen=True, slots=True)
class OrderSettings:
    seed: int
    keep_sharing: float  # share of the possible prefix sharing that splitting must keep
    everything_fits: bool  # KV of all requests at once: then splitting only costs
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Order:
    """`sequence` int32[N]: requests in admission order, over `tree`, which may have been split."""

    tree: PrefixTree
    sequence: Int32
    admission: Admission


def order_requests(
    policy: str, tree: PrefixTree, annotate: Annotate, settings: OrderSettings
) -> Order:
    """The order of `policy`, one of `POLICIES`."""
    return POLICIES[policy](tree, annotate, settings)


def interleaved(tree: PrefixTree, seed: int, small: float) -> Int32:
    """Depth-first, the children of the root and of set-wide system prompts in random order.

    Subtrees stay contiguous, but sets that differ in their system prompt alone are mixed. A child
    of the root counts as a set-wide system prompt where it has at most `small` tokens.
    """
    root = common_root(tree)
    top = np.flatnonzero(tree.parent == root)
    top = top[top != root]
    set_wide = np.setdiff1d(top[tree.edge_len[top] <= small], tree.leaf_node)
    below = np.flatnonzero(np.isin(tree.parent, set_wide))
    units = np.concatenate([np.setdiff1d(top, set_wide), below])
    if not len(units):
        return tree.leaf_order
    units = np.random.default_rng(seed).permutation(units)
    start, count = tree.first_leaf[units], tree.request_count[units].astype(np.int64)
    # positions of each unit's leaves, one unit after the other
    ends = np.cumsum(count)
    positions = np.arange(ends[-1]) - np.repeat(ends - count, count) + np.repeat(start, count)
    sequence: Int32 = tree.leaf_order[positions]
    return sequence


def _blend(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """Two lists, steered to the job's own ratio of compute to KV reads in every step."""
    del annotate
    return Order(tree, _mixed(tree, settings), "two lists")


def _blendserve(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """Densest first, taken from both ends (paper section 5)."""
    keep = 1.0 if settings.everything_fits else settings.keep_sharing
    tree = split_by_density(tree, annotate, keep)
    return Order(tree, tree.leaf_order, "two-ended")


def _dfs(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """Depth-first, sets mixed: all sharing, no thought of density."""
    del annotate
    return Order(tree, _mixed(tree, settings), "one list")


def _dfs_sets(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """Depth-first in token order, one set after the other."""
    del annotate, settings
    return Order(tree, tree.leaf_order, "one list")


def _arrival(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """As the file has them."""
    del annotate, settings
    return Order(tree, np.arange(tree.num_requests, dtype=np.int32), "one list")


def _random(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """A seeded permutation."""
    del annotate
    shuffled = np.random.default_rng(settings.seed).permutation(tree.num_requests)
    return Order(tree, shuffled.astype(np.int32), "one list")


def _mixed(tree: PrefixTree, settings: OrderSettings) -> Int32:
    return interleaved(tree, settings.seed, _SYSTEM_PROMPT_FRAC * settings.kv_capacity_tokens)


POLICIES: Mapping[str, Callable[[PrefixTree, Annotate, OrderSettings], Order]] = {
    "blend": _blend,
    "blendserve": _blendserve,
    "dfs": _dfs,
    "dfs-sets": _dfs_sets,
    "arrival": _arrival,
    "random": _random,
}
