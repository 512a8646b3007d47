"""The prefix tree of a job as a struct of arrays.

A node is a run of prompt tokens that its requests share; every request ends in a leaf of its own
(with an empty edge where its prompt is a prefix of another). Nodes lie in preorder, so a subtree
is a range of nodes and also a range of `leaf_order`. The tree knows token counts, not costs:
those are in `annotate`.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from blendrun.errors import PlanError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

ROOT = 0


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """K nodes over N requests; node 0 is the root, with an empty path.

    The edge of node v holds the tokens `[depth[parent[v]], depth[v])` of any request below it.
    """

    parent: Int32  # [K] the root is its own parent
    subtree_end: Int32  # [K] one past the last node of the subtree, in preorder
    depth: Int32  # [K] tokens from the root to the end of the edge
    first_leaf: Int32  # [K] subtree = leaf_order[first_leaf:last_leaf]
    last_leaf: Int32  # [K]
    leaf_order: Int32  # [N] request of each leaf, in preorder
    leaf_node: Int32  # [N] node in which request i ends

    @property
    def num_nodes(self) -> int:
        return len(self.parent)

    @property
    def num_requests(self) -> int:
        return len(self.leaf_order)

    @property
    def edge_start(self) -> Int32:
        """Tokens before each node's edge, [K]."""
        return self.depth[self.parent]

    @property
    def edge_len(self) -> Int32:
        """Tokens on each node's edge, [K]."""
        return self.depth - self.edge_start

    @property
    def request_count(self) -> Int32:
        """Requests below each node, [K]."""
        return self.last_leaf - self.first_leaf

    @property
    def prompt_len(self) -> Int32:
        """Prompt tokens of each request, [N]."""
        return self.depth[self.leaf_node]

    @property
    def num_prompt_tokens(self) -> int:
        return int(self.prompt_len.sum(dtype=np.int64))

    @property
    def num_unique_tokens(self) -> int:
        """Prompt tokens that have to be computed when every shared prefix is computed once.

        A prompt that is the prefix of another shares all of its tokens.
        """
        return int(self.edge_len.sum(dtype=np.int64))

    def count_below(self, requests: Int32) -> Int64:
        """How many of `requests` (each at most once) lie below each node, [K]."""
        chosen = np.zeros(self.num_requests, np.int64)
        chosen[requests] = 1
        running = np.concatenate([[0], np.cumsum(chosen[self.leaf_order])])
        counts: Int64 = running[self.last_leaf] - running[self.first_leaf]
        return counts

    def most_below(self, values: Int64) -> Int64:
        """The largest of `values` [N] of requests below each node, [K]."""
        ordered = np.append(values[self.leaf_order], np.iinfo(np.int64).min)
        ranges = np.stack([self.first_leaf, self.last_leaf], axis=1).ravel()
        most: Int64 = np.maximum.reduceat(ordered, ranges)[::2]
        return most

    def in_whole_pages(self, page_size: int) -> Self:
        """The tree of a cache that shares prefixes in whole pages only.

        What requests share ends at a multiple of `page_size` tokens; the rest is their own.
        """
        depth = self.depth - self.depth % page_size
        depth[self.leaf_node] = self.prompt_len
        return replace(self, depth=depth)

    def path(self, node: int) -> list[int]:
        """Nodes from below the root down to `node`."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parent[node])
        return nodes[::-1]

    def check_integrity(self) -> None:
        """Prove that the columns form one tree over all requests.

        Raises:
            PlanError: they do not; the message says which rule broke.
        """
        nodes = np.arange(self.num_nodes)
        inner = nodes[1:]
        leaf = np.zeros(self.num_nodes, bool)
        leaf[self.leaf_node] = True
        rules = {
            "the root starts at token 0": self.depth[ROOT] == 0,
            "parents come before children": (self.parent[inner] < inner).all(),
            "depths do not shrink downwards": (self.edge_len >= 0).all(),
            "a subtree lies inside its parent's": (
                self.subtree_end[inner] <= self.subtree_end[self.parent[inner]]
            ).all(),
            "a leaf range lies inside its parent's": (
                (self.first_leaf[inner] >= self.first_leaf[self.parent[inner]])
                & (self.last_leaf[inner] <= self.last_leaf[self.parent[inner]])
            ).all(),
            "the root covers everything": self.subtree_end[ROOT] == self.num_nodes
            and self.request_count[ROOT] == self.num_requests,
            "every request is one leaf": np.array_equal(
                np.sort(self.leaf_order), np.arange(self.num_requests)
            ),
            "leaves hold one request": (self.request_count[leaf] == 1).all()
            and (self.subtree_end[leaf] == nodes[leaf] + 1).all(),
            "leaf order and leaf nodes agree": np.array_equal(
                self.leaf_order[self.first_leaf[self.leaf_node]], np.arange(self.num_requests)
            ),
            "inner nodes have children": (self.request_count[~leaf][1:] > 0).all(),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PlanError(
                f"prefix tree is broken: {'; '.join(broken)} "
                f"({self.num_nodes} nodes, {self.num_requests} requests)"
            )
