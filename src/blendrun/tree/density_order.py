"""Sort a tree by density, and split off what lies far from where it belongs (paper, section 5.2).

Sort: the children of every node, densest first. Split: siblings that are denser than the whole
subtree before their parent, or sparser than the one after it, move up to where that subtree hangs,
with a copy of the prefix between. The two alternate until nothing is left that is worth moving.
"""

from collections.abc import Callable

import numpy as np

from blendrun.tree.annotate import Annotations
from blendrun.tree.build import arrange, topology_of
from blendrun.tree.detach import detach
from blendrun.tree.misplaced import misplaced, worthwhile
from blendrun.tree.prefix_tree import ROOT, PrefixTree

LEAST_FRAC = 0.005  # of the job's compute; moving less gains nothing

Annotate = Callable[[PrefixTree], Annotations]


def sort_by_density(tree: PrefixTree, annotations: Annotations) -> PrefixTree:
    """The same tree with the children of every node in order of falling density."""
    topology, node_of = topology_of(tree)
    rank = np.empty(tree.num_nodes, np.float64)
    rank[node_of] = -annotations.node_density
    return arrange(topology, rank)


def split_by_density(tree: PrefixTree, annotate: Annotate, keep_frac: float) -> PrefixTree:
    """Sort and split, keeping at least `keep_frac` of the shared prompt tokens.

    Afterwards siblings fall in density. Below a prefix, a subtree is no denser than the whole
    subtree that comes before that prefix, and no sparser than the one after it, save where

    - the prefix, from the node on from which that neighbour hangs, has more tokens than are left
      of `(1 - keep_frac)` of the shared ones, or
    - the siblings on the wrong side of that neighbour would together move no more compute seconds
      than the prefix takes: those that they have beyond, or short of, the neighbour's density.

    Exceptions to both may remain that move less than `2 * LEAST_FRAC` of the job's compute in all.

    Each round parts siblings, and two requests that have been parted share less than before, for
    good: so it ends.

    Args:
        annotate: prices a tree with the same requests.
        keep_frac: 0 to 1, of `num_prompt_tokens - num_unique_tokens`.
    """
    shared = tree.num_prompt_tokens - tree.num_unique_tokens
    most_tokens = tree.num_unique_tokens + int((1 - keep_frac) * shared)
    tree = sort_by_density(tree, annotate(tree))
    while tree.num_unique_tokens < most_tokens:
        priced = annotate(tree)
        left = most_tokens - tree.num_unique_tokens
        least_s = LEAST_FRAC * float(priced.compute_s[ROOT])
        runs = worthwhile(misplaced(tree, priced), left, least_s)
        if len(runs) == 0:
            break
        tree = detach(tree, runs)
        tree = sort_by_density(tree, annotate(tree))
    return tree
