"""A made-up job as columns: every request's lengths, its set, and the prefix it shares.

Tokens are made only when they are written; the prefix tree follows from the structure alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.tree.annotate import annotate
from blendrun.tree.build import Topology, arrange
from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree
from blendrun.workloads.prompt_file import LENGTH_COLUMN, write_prompts
from blendrun.workloads.shared_prefixes import SharedPrefixes
from blendrun.workloads.totals import Totals


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """N requests in order of arrival; lengths in tokens."""

    set_names: tuple[str, ...]
    set_idx: Int32  # [N] index into set_names
    number: Int32  # [N] which request of its set, from 0; with the set's name its id
    prefix: Int32  # [N] the longest of `prefixes` that the request begins with
    own_len: Int32  # [N] prompt tokens after it
    output_len: Int32  # [N] the true output length
    max_tokens: Int32  # [N] what a user would write: at least every output of the set
    prefixes: SharedPrefixes
    vocab_size: int
    seed: int

    @property
    def num_requests(self) -> int:
        return len(self.own_len)

    @property
    def shared_len(self) -> Int32:
        """Tokens of each request's shared prefix, [N]."""
        return self.prefixes.depth[self.prefix]

    @property
    def prompt_len(self) -> Int32:
        """Prompt tokens of each request, [N]."""
        return self.shared_len + self.own_len

    def only(self, set_idx: int) -> Self:
        """The requests of one set, in the same order."""
        rows = self.set_idx == set_idx
        columns = ("set_idx", "number", "prefix", "own_len", "output_len", "max_tokens")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def tree(self) -> PrefixTree:
        """The prefix tree that the written prompts have; children by first arrival below them.

        Where more requests part at one node than the vocabulary has tokens, some written prompts
        share a token or two more than this tree knows.
        """
        num_below = np.bincount(self.prefix, minlength=len(self.prefixes)).astype(np.int32)
        kept, stands_for = self.prefixes.compact(num_below)
        inner = kept[:0:-1]  # without the root, which comes last
        node = self.num_requests + len(kept) - 1 - np.arange(len(kept), dtype=np.int32)
        parent = np.concatenate(
            [
                node[stands_for[self.prefix]],
                node[stands_for[self.prefixes.parent[inner]]],
                node[:1],
            ]
        )
        depth = np.concatenate([self.prompt_len, self.prefixes.depth[inner], [0]])
        rank = np.concatenate([np.arange(self.num_requests), np.full(len(kept), np.inf)])
        np.minimum.at(rank, parent[: self.num_requests], rank[: self.num_requests])
        for inner_node in range(self.num_requests, len(parent) - 1):  # children before parents
            rank[parent[inner_node]] = min(rank[parent[inner_node]], rank[inner_node])
        return arrange(Topology(parent.astype(np.int32), depth.astype(np.int32)), rank)

    def totals(self, cost: CostModel) -> Totals:
        """T_comp, what sharing saves of it, and T_mem of the whole job."""
        compute_s = float(cost.compute_s(self.prompt_len, self.output_len).sum())
        priced = annotate(self.tree(), self.output_len, cost)
        saved_s = max(compute_s - float(priced.compute_s[ROOT]), 0.0)  # not below by rounding
        return Totals(compute_s, saved_s, float(priced.memory_s[ROOT]))

    def write(self, path: Path, length_column: str = LENGTH_COLUMN) -> None:
        """Write a prompt file, see `prompt_file.write_prompts`."""
        write_prompts(self, path, length_column)
