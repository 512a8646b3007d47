"""The requests of a tree side by side: what each adds to its neighbour, and a mixed order."""

from dataclasses import dataclass

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.schedule.cuts import MixedRow, mix
from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree


@dataclass(frozen=True, slots=True)
class LeafRow:
    """n leaves in preorder; the first `num_dense` are the tree's dense side."""

    requests: Int32  # [n]
    shared_len: Int32  # [n] prompt tokens shared with the leaf before; 0 for the first
    num_dense: int

    @classmethod
    def of(cls, tree: PrefixTree, num_dense: int) -> "LeafRow":
        """All leaves of `tree`."""
        # what a leaf does not share is a chain of nodes that begin with it, the highest one first
        highest = np.flatnonzero(np.diff(tree.first_leaf, prepend=-1))
        return cls(tree.leaf_order, tree.edge_start[highest[: tree.num_requests]], num_dense)

    def without(self, requests: Int32) -> "LeafRow":
        """The row less some requests."""
        kept = np.flatnonzero(~np.isin(self.requests, requests))
        if not len(kept):
            return LeafRow(self.requests[:0], self.shared_len[:0], 0)
        # neighbours now share what all between them do
        starts = np.concatenate([[0], kept[:-1] + 1])
        shared_len = np.minimum.reduceat(self.shared_len[: kept[-1] + 1], starts)
        return LeafRow(self.requests[kept], shared_len, int((kept < self.num_dense).sum()))

    def added_s(self, prompt_len: Int32, output_len: Int32, cost: CostModel) -> Float64:
        """Compute seconds that each leaf adds to the one before it, [n].

        Args:
            prompt_len, output_len: [N] by request number.
        """
        prompt_len, output_len = prompt_len[self.requests], output_len[self.requests]
        prefill_s = cost.prefill_s(self.shared_len, prompt_len) + cost.head_s(1)
        added_s: Float64 = prefill_s + cost.decode_compute_s(prompt_len, output_len)
        return added_s

    def mixed(self, prompt_len: Int32, output_len: Int32, cost: CostModel) -> MixedRow:
        """The row with its prices, and the sequence in which both sides alternate.

        Args:
            prompt_len, output_len: [N] by request number.
        """
        added_s = self.added_s(prompt_len, output_len, cost)
        memory_s = cost.memory_s(prompt_len[self.requests], output_len[self.requests])
        ratio = added_s.sum() / memory_s.sum() if memory_s.any() else 0.0
        dense_before = mix(added_s - ratio * memory_s, self.num_dense)
        repeat_s = cost.prefill_s(0, self.shared_len)
        to_border = np.minimum.accumulate(repeat_s[: self.num_dense][::-1])[::-1]
        from_border = np.minimum.accumulate(repeat_s[self.num_dense :])
        return MixedRow(
            dense_before,
            np.concatenate([[0.0], np.cumsum(added_s)]),
            repeat_s,
            np.concatenate([to_border, from_border]),
            np.concatenate([[0.0], np.cumsum(memory_s[self.turns(dense_before)])]),
            cost.hardware.overlap_exponent,
        )

    def turns(self, dense_before: Int64) -> Int64:
        """Places in the row, in the order of the mixed sequence."""
        is_dense = np.diff(dense_before) == 1
        places = np.empty(len(is_dense), np.int64)
        places[is_dense] = np.arange(self.num_dense)
        places[~is_dense] = np.arange(self.num_dense, len(is_dense))
        return places
