"""A job before it is ordered: its requests, their prefix tree and their prices."""

from dataclasses import dataclass

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.cost.optimum import Optimum
from blendrun.data.ingest import Ingested
from blendrun.schedule.lengths import ExpectedLengths
from blendrun.tree.annotate import Annotations, annotate
from blendrun.tree.bound import job_optimum
from blendrun.tree.prefix_tree import Int32, PrefixTree


@dataclass(frozen=True, slots=True)
class PricedJob:
    """N requests over an unsplit tree, on `dp` ranks of the machine that `cost` prices."""

    rows: Ingested
    tree: PrefixTree
    lengths: ExpectedLengths
    cost: CostModel
    dp: int

    @property
    def output_len(self) -> Int32:
        """Expected output tokens, [N]."""
        return self.lengths.tokens

    def annotate(self, tree: PrefixTree) -> Annotations:
        """Prices of a tree over the same requests."""
        return annotate(tree, self.output_len, self.cost)

    @property
    def kv_tokens(self) -> int:
        """KV tokens when every request is in memory at its full length, prefixes shared."""
        return self.tree.num_unique_tokens + int(self.output_len.sum(dtype=np.int64))

    @property
    def kv_capacity_tokens(self) -> int:
        return self.cost.kv_capacity_tokens * self.dp

    @property
    def everything_fits(self) -> bool:
        return self.kv_tokens <= self.kv_capacity_tokens

    def optimum(self) -> Optimum:
        """The bound, in rank-seconds."""
        return job_optimum(self.tree, self.output_len, self.annotate(self.tree), self.cost, self.dp)
