"""Admission orders behind one registry: a policy is a name and a function from tree to sequence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from blendrun.tree.density_order import Annotate, split_by_density
from blendrun.tree.prefix_tree import Int32, PrefixTree


@dataclass(frozen=True, slots=True)
class OrderSettings:
    seed: int
    keep_sharing: float  # share of the possible prefix sharing that splitting must keep
    everything_fits: bool  # KV of all requests at once: then splitting only costs


@dataclass(frozen=True, slots=True)
class Order:
    """`sequence` int32[N]: requests in admission order, over `tree`, which may have been split."""

    tree: PrefixTree
    sequence: Int32
    two_ended: bool  # the batcher takes from both ends


def order_requests(
    policy: str, tree: PrefixTree, annotate: Annotate, settings: OrderSettings
) -> Order:
    """The order of `policy`, one of `POLICIES`."""
    return POLICIES[policy](tree, annotate, settings)


def _blendserve(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """Densest first, taken from both ends (paper section 5)."""
    keep = 1.0 if settings.everything_fits else settings.keep_sharing
    tree = split_by_density(tree, annotate, keep)
    return Order(tree, tree.leaf_order, two_ended=True)


def _dfs(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """Depth-first in token order: all sharing, no thought of density."""
    del annotate, settings
    return Order(tree, tree.leaf_order, two_ended=False)


def _arrival(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """As the file has them."""
    del annotate, settings
    return Order(tree, np.arange(tree.num_requests, dtype=np.int32), two_ended=False)


def _random(tree: PrefixTree, annotate: Annotate, settings: OrderSettings) -> Order:
    """A seeded permutation."""
    del annotate
    shuffled = np.random.default_rng(settings.seed).permutation(tree.num_requests)
    return Order(tree, shuffled.astype(np.int32), two_ended=False)


POLICIES: Mapping[str, Callable[[PrefixTree, Annotate, OrderSettings], Order]] = {
    "blendserve": _blendserve,
    "dfs": _dfs,
    "arrival": _arrival,
    "random": _random,
}
