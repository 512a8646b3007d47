"""Find the subtrees that lie on the wrong side of a neighbour in the order of density.

In a tree sorted by density a node's children fall in density, but a child may be denser than the
whole subtree before its parent, or sparser than the one after it. Siblings on the wrong side of
the same neighbour are a *run*: they leave together, so that the prefix above them is computed
once more for all of them and not for each.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from blendrun.tree.annotate import Annotations, Float64
from blendrun.tree.prefix_tree import ROOT, Int32, Int64, PrefixTree

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Runs:
    """R runs of siblings, M nodes in all, that would be better placed as children of `goal`."""

    member: Int32  # [M] nodes
    run: Int64  # [M] of each member
    parent: Int32  # [R]
    goal: Int32  # [R] parent of the neighbour, above `parent`
    repeated_len: Int32  # [R] prompt tokens that leaving computes once more, …
    repeated_s: Float64  # [R] … their compute, …
    moved_s: Float64  # [R] … and compute beyond, or short of, what the neighbour's density gives

    def __len__(self) -> int:
        return len(self.parent)

    def take(self, chosen: Bools | Int64) -> "Runs":
        """Some of the runs: a mask [R], or their numbers in the order that they shall have."""
        number = np.full(len(self), -1)
        number[chosen] = np.arange(len(self.parent[chosen]))
        run = number[self.run]
        return Runs(
            self.member[run >= 0],
            run[run >= 0],
            self.parent[chosen],
            self.goal[chosen],
            self.repeated_len[chosen],
            self.repeated_s[chosen],
            self.moved_s[chosen],
        )


def misplaced(tree: PrefixTree, priced: Annotations) -> Runs:
    """All runs of a tree that is sorted by density.

    Args:
        priced: of this tree.
    """
    parent, density = tree.parent, priced.node_density
    before, after = (neighbour[parent] for neighbour in _neighbours(tree))
    dense = (before != ROOT) & (density > density[before])
    sparse = (after != ROOT) & (density < density[after]) & ~dense
    member = np.flatnonzero((dense | sparse) & (parent != ROOT))
    key = 2 * parent[member].astype(np.int64) + dense[member]
    is_run = np.zeros(2 * tree.num_nodes, np.bool_)
    is_run[key] = True
    run_parent = (np.flatnonzero(is_run) // 2).astype(np.int32)
    run = (np.cumsum(is_run) - 1)[key]
    next_to = np.where(dense, before, after)[member]
    goal = np.empty(len(run_parent), np.int32)
    goal[run] = parent[next_to]
    excess_s = priced.compute_s[member] - density[next_to] * priced.memory_s[member]
    return Runs(
        member.astype(np.int32),
        run,
        run_parent,
        goal,
        tree.depth[run_parent] - tree.depth[goal],
        priced.prefix_s[run_parent] - priced.prefix_s[goal],
        np.abs(np.bincount(run, excess_s, len(run_parent))),
    )


def worthwhile(runs: Runs, allowed_len: int, least_s: float) -> Runs:
    """Runs to move now: most seconds per token first, `allowed_len` repeated tokens in all.

    A run is worth it when it moves more seconds than it repeats. Those that move least per token
    stay while they come to less than `least_s` in all; if the others do, too, all stay.
    """
    runs = runs.take((runs.repeated_len <= allowed_len) & (runs.moved_s > runs.repeated_s))
    runs = runs.take(np.argsort(-runs.moved_s / runs.repeated_len, kind="stable"))
    rest_s = np.cumsum(runs.moved_s[::-1])[::-1]
    runs = runs.take(rest_s >= least_s)
    if runs.moved_s.sum() < least_s:
        return runs.take(np.zeros(0, np.int64))
    return runs.take(_affordable(runs.repeated_len, allowed_len))


@numba.njit(cache=True)
def _affordable(repeated_len: Int32, allowed_len: int) -> Bools:
    chosen = np.zeros(len(repeated_len), np.bool_)
    for run in range(len(repeated_len)):
        if repeated_len[run] <= allowed_len:
            allowed_len -= repeated_len[run]
            chosen[run] = True
    return chosen


def _neighbours(tree: PrefixTree) -> tuple[Int32, Int32]:
    """The whole subtrees next to each node's in preorder, before and after it; ROOT for none."""
    nodes = np.arange(tree.num_nodes, dtype=np.int32)
    after = np.where(tree.subtree_end < tree.num_nodes, tree.subtree_end, np.int32(ROOT))
    follows = (after != ROOT) & (tree.parent[after] == tree.parent)
    sibling = np.full(tree.num_nodes, ROOT, np.int32)
    sibling[after[follows]] = nodes[follows]
    # a first child comes right after its parent, and has before it what its parent has
    before = sibling[np.maximum.accumulate(np.where(sibling != ROOT, nodes, ROOT))]
    return before, after
