"""The prefix tree of a plan, as the planner saw it: figures of subtrees, largest first.

Seconds are those of the plan's cost model, and the prefix of a node is paid by all requests below
it in equal parts, so the figures of subtrees that do not overlap add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.errors import InputError
from blendrun.report.tree_text import PrefixText, open_tokenizer
from blendrun.schedule.plan_file import TREE_FILE, StoredPlan, read_plan, sidecar_folder
from blendrun.tree.annotate import Float64
from blendrun.tree.groups import children, groups
from blendrun.tree.prefix_tree import ROOT, Int32, Int64, PrefixTree
from blendrun.tree.store import NodePrices, read_prices
from blendrun.units import count_of

PREVIEW_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over subtrees that do not overlap."""

    subtrees: int
    requests: int
    prompt_tokens: int  # whole prompts, with what lies above the subtrees
    unique_tokens: int  # on the edges of the subtrees
    output_tokens: int  # expected
    compute_s: float
    memory_s: float
    lengths_from: Mapping[str, int]  # requests by origin of their expected length

    @property
    def seconds(self) -> float:
        """Compute and KV reads, one after the other; unlike the larger of the two, these add up."""
        return self.compute_s + self.memory_s

    @property
    def density(self) -> float | None:
        """Compute over KV reads; None where no KV is read."""
        return self.compute_s / self.memory_s if self.memory_s > 0 else None

    @property
    def sharing_frac(self) -> float:
        """Share of the prompt tokens that these subtrees need not compute."""
        return 1 - self.unique_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def mean_output_len(self) -> float:
        return self.output_tokens / self.requests if self.requests else 0.0

    def part_of(self, job: "Figures") -> float:
        """Share of the job's seconds."""
        return self.seconds / job.seconds if job.seconds else 0.0


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: int
    edge_len: int
    depth: int  # tokens from the root to the end of the edge
    figures: Figures
    text: str


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The largest of some nodes, and sums that complete them to the node or job they are part of.

    `above_tokens` are on edges above all rows and others; no other figure is left out of those.
    """

    rows: tuple[NodeRow, ...]  # by falling seconds
    others: Figures
    above_tokens: int


@dataclass(frozen=True, slots=True)
class TreeView:
    stored: StoredPlan
    prices: NodePrices
    running: Mapping[str, Int64]  # sums over requests in the order of leaves, [N + 1]
    origins: Mapping[str, Int64]  # the same, requests by origin of their expected length
    text: PrefixText

    @classmethod
    def open(cls, path: Path) -> "TreeView":
        """Read the plan.

        Raises:
            PlanError: it is no plan, or a side file is missing or broken.
        """
        stored = read_plan(path)
        prices = read_prices(sidecar_folder(path) / TREE_FILE)
        tree, table = stored.tree, stored.requests
        place = np.empty(tree.num_requests, np.int64)  # of each request in the schedule
        place[table["request"].to_numpy()] = np.arange(tree.num_requests)
        leaves = place[tree.leaf_order]
        running = {
            name: _running(table[name].to_numpy()[leaves])
            for name in ("prompt_len", "expected_output_len")
        }
        codes = table["length_from"].combine_chunks().dictionary_encode()
        origin = codes.indices.to_numpy()[leaves]
        origins = {
            name: _running(origin == code) for code, name in enumerate(codes.dictionary.to_pylist())
        }
        return cls(
            stored, prices, running, origins, PrefixText(stored, open_tokenizer(stored.plan))
        )

    @property
    def tree(self) -> PrefixTree:
        return self.stored.tree

    @property
    def job(self) -> Figures:
        return self.figures(np.array([ROOT], np.int32))

    def seconds(self, nodes: Int32) -> Float64:
        return self.prices.compute_s[nodes] + self.prices.memory_s[nodes]

    def below(self, running: Int64, nodes: Int32) -> Int64:
        """Sum over the requests below each of `nodes`."""
        sums: Int64 = running[self.tree.last_leaf[nodes]] - running[self.tree.first_leaf[nodes]]
        return sums

    def columns(self, nodes: Int32) -> dict[str, npt.NDArray[Any]]:
        """What adds up over subtrees, for each of `nodes`; the names are those of `Figures`."""
        return {
            "requests": self.tree.request_count[nodes],
            "prompt_tokens": self.below(self.running["prompt_len"], nodes),
            "unique_tokens": self.prices.unique_tokens[nodes],
            "output_tokens": self.below(self.running["expected_output_len"], nodes),
            "compute_s": self.prices.compute_s[nodes],
            "memory_s": self.prices.memory_s[nodes],
        }

    def figures(self, nodes: Int32) -> Figures:
        counts = {name: int(self.below(sums, nodes).sum()) for name, sums in self.origins.items()}
        sums = {name: values.sum().item() for name, values in self.columns(nodes).items()}
        present = {name: count for name, count in counts.items() if count}
        return Figures(subtrees=len(nodes), lengths_from=present, **sums)

    def row(self, node: int) -> NodeRow:
        tree = self.tree
        return NodeRow(
            node,
            int(tree.depth[node] - tree.depth[tree.parent[node]]),
            int(tree.depth[node]),
            self.figures(np.array([node], np.int32)),
            self.text.of(node, PREVIEW_WIDTH) if node != ROOT else "",
        )

    def groups(self, top: int) -> NodeTable:
        """The largest groups of the job."""
        found = groups(self.tree)
        return self._table(found.nodes, found.opened, top)

    def children(self, node: int, top: int) -> NodeTable:
        """The largest children of `node`."""
        return self._table(children(self.tree, node), np.array([node], np.int32), top)

    def path(self, node: int) -> list[NodeRow]:
        """Rows from below the root down to `node`.

        Raises:
            InputError: there is no such node.
        """
        if not 0 <= node < self.tree.num_nodes:
            raise InputError(
                f"there is no node {node}: the tree has {count_of(self.tree.num_nodes, 'node')}",
                f"nodes are 0 to {self.tree.num_nodes - 1}; without --node, the largest are listed",
            )
        return [self.row(each) for each in self.tree.path(node)]

    def request(self, node: int) -> dict[str, Any] | None:
        """The request that ends in `node` as the plan has it; None where others lie below."""
        if node == ROOT or self.tree.subtree_end[node] > node + 1:
            return None
        number = int(self.tree.leaf_order[self.tree.first_leaf[node]])
        place = int(np.argmax(self.stored.requests["request"].to_numpy() == number))
        shown = self.stored.requests.drop_columns("content")  # bytes, which JSON has not
        record: dict[str, Any] = shown.slice(place, 1).to_pylist()[0]
        return record | {"place": place}

    def _table(self, nodes: Int32, above: Int32, top: int) -> NodeTable:
        order = nodes[np.argsort(-self.seconds(nodes), kind="stable")]
        return NodeTable(
            tuple(self.row(node) for node in order[:top].tolist()),
            self.figures(order[top:]),
            int(self.tree.edge_len[above].sum(dtype=np.int64)),
        )


def _running(values: npt.NDArray[Any]) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
