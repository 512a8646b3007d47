"""Log-probabilities of prompt tokens, of all or of a continuation at the end, computed once per
node of the prefix tree.

Whoever computes a node emits them for all requests below it that ask: the logits at a position
say how likely each token is that may come next. Inside an edge that is one token, at its end the
first token of every child. They are kept until the last request that asks has ended, so neither
a cached prefix nor one that is computed again costs the output head a second time.
"""

from dataclasses import dataclass, field

import numpy as np

from blendrun.data.scored_requests import NOT_SCORED
from blendrun.data.scores import Score
from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.logprobs import Float32, Logprobs
from blendrun.engine.requests import EngineRequests
from blendrun.schedule.batch import Batch
from blendrun.tree.prefix_tree import Int32, Int64

_CLAIMED = np.inf  # a step is computing it
_NEVER = 2**31  # beyond any prompt


@dataclass(slots=True)
class _Node:
    """What is known of an edge [start, end): of its tokens but the first, and of what follows."""

    start: int
    end: int
    chosen: Float32  # [end - start - 1]; NaN: not yet
    top_ids: Int32  # [end - start - 1, k]
    top: Float32
    children: Int32 | None = None  # nodes that may follow, once their first tokens are known, …
    after: Float32 = field(default_factory=lambda: np.zeros(0, np.float32))  # … and these
    after_top_ids: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))  # [k]
    after_top: Float32 = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class _Goal:
    """Where rows of a step belong: first those inside an edge, then the one at its end."""

    node: _Node
    inside: Int64  # places in `chosen`
    first_row: int
    first_pair: int
    children: Int32 | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """W positions of a step, and the P tokens after them whose probabilities are asked for."""

    token_idx: Int64  # [W] tokens of the batch
    pair_row: Int64  # [P] which of the W, ascending
    pair_token: Int64  # [P] token id
    top_k: int
    goals: list[_Goal]


class PromptScores:
    def __init__(self, requests: EngineRequests, pending: Int32) -> None:
        """For the `pending` requests; the others have been answered."""
        self._requests, tree = requests, requests.tree
        scored = requests.is_scored
        self._asks = (requests.prompt_logprobs >= 0) | scored
        asks = pending[self._asks[pending]]
        self.is_asked = bool(len(asks))
        self._nodes: dict[int, _Node] = {}
        if self.is_asked:
            # of each request, the first token that it asks for; a score needs the best alternative
            first = np.where(scored, requests.score_start, 1).astype(np.int64)
            top_k = np.where(scored, 1, requests.prompt_logprobs).astype(np.int64)
            idle = np.ones(len(requests), np.bool_)
            idle[asks] = False
            first[idle], top_k[idle] = _NEVER, -1
            self._first = -tree.most_below(-first)  # [K] of those below
            self._top_k = tree.most_below(top_k)  # [K]
            self._left = tree.count_below(asks)  # [K] that ask and have not ended

    def wanted(self, batch: Batch) -> Wanted | None:
        """What the output head has to compute in this step beside the draws."""
        if not self.is_asked:
            return None
        goals: list[_Goal] = []
        rows: list[Int64] = []
        pairs: list[tuple[Int64, Int64]] = []
        num_rows = num_pairs = 0
        token_base = np.cumsum(batch.num_tokens, dtype=np.int64) - batch.num_tokens
        for i in range(batch.num_decodes, len(batch.slot)):
            request, start = int(batch.request[i]), int(batch.start[i])
            end = start + int(batch.num_tokens[i])
            for node in self._path(request):
                found = self._missing(node, start, end)
                if found is None:
                    continue
                known, inside, children = found
                positions = known.start + inside
                tokens = self._requests.prompt(request)[positions + 1].astype(np.int64)
                at = np.arange(len(positions))
                if children is not None:
                    positions = np.append(positions, known.end - 1)
                    tokens = np.append(tokens, self._first_tokens(children))
                    at = np.append(at, np.full(len(children), len(at)))
                goals.append(_Goal(known, inside, num_rows, num_pairs, children))
                rows.append(token_base[i] + positions - start)
                pairs.append((num_rows + at, tokens))
                num_rows += len(positions)
                num_pairs += len(tokens)
        if not goals:
            return None
        pair_row, pair_token = (np.concatenate(column) for column in zip(*pairs, strict=True))
        top_k = max(goal.node.top.shape[1] for goal in goals)
        return Wanted(np.concatenate(rows), pair_row, pair_token, top_k, goals)

    def keep(self, wanted: Wanted, found: Logprobs) -> None:
        """Take what a step has computed."""
        for goal in wanted.goals:
            node, k = goal.node, goal.node.top.shape[1]
            row, pair = goal.first_row, goal.first_pair
            end = row + len(goal.inside)
            node.chosen[goal.inside] = found.chosen[pair : pair + len(goal.inside)]
            node.top_ids[goal.inside] = found.top_ids[row:end, :k]
            node.top[goal.inside] = found.top[row:end, :k]
            if goal.children is not None:
                pair += len(goal.inside)
                node.after = found.chosen[pair : pair + len(goal.children)].copy()
                node.after_top_ids = found.top_ids[end, :k].copy()
                node.after_top = found.top[end, :k].copy()

    def take(self, request: int) -> TokenLogprobs | None:
        """Those of all tokens of a request that ends, if it asks."""
        k = int(self._requests.prompt_logprobs[request])
        return self._of_path(request, k) if k >= 0 else None

    def take_score(self, request: int) -> Score | None:
        """Those of the continuation of a request that ends, if it has one."""
        start = int(self._requests.score_start[request])
        if start == NOT_SCORED:
            return None
        num_tokens = int(self._requests.prompt_len[request]) - start
        found = self._of_path(request, 1)
        chosen, best = found.chosen[-num_tokens:], found.top[-num_tokens:, 0]
        logprob = float(chosen.sum(dtype=np.float64))
        return Score(logprob, num_tokens, bool((chosen == best).all()))

    def forget(self, request: int) -> None:
        """A request has ended: what only it asked for is dropped."""
        if self._asks[request]:
            for node in self._path(request):
                self._left[node] -= 1
                if not self._left[node]:
                    self._nodes.pop(node, None)

    def _path(self, request: int) -> list[int]:
        """Nodes on the way from the root to the leaf of whose tokens, or first, somebody asks."""
        path = self._requests.tree.path(int(self._requests.tree.leaf_node[request]))
        depth = self._requests.tree.depth
        return [node for node in path if self._first[node] <= depth[node]]

    def _of_path(self, request: int, k: int) -> TokenLogprobs:
        """Of the tokens on the path of a request; NaN where nobody asks."""
        parts = [self._of_edge(node, k) for node in self._path(request)]
        chosen, top_ids, top = (np.concatenate(column) for column in zip(*parts, strict=True))
        return TokenLogprobs(chosen, top_ids, top)

    def _missing(self, node: int, start: int, end: int) -> tuple[_Node, Int64, Int32 | None] | None:
        """What the positions [start, end) can tell of a node and is not known yet."""
        tree = self._requests.tree
        first, last = int(tree.depth[tree.parent[node]]), int(tree.depth[node])
        start, end = max(start, first, int(self._first[node]) - 1), min(end, last)
        if start >= end:
            return None
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _new_node(first, last, int(self._top_k[node]))
        inside = start - first + np.flatnonzero(np.isnan(known.chosen[start - first : end - first]))
        known.chosen[inside] = _CLAIMED
        children = None
        if end == last and known.children is None:
            known.children = self._children(node)
            children = known.children if len(known.children) else None
        return (known, inside, children) if len(inside) or children is not None else None

    def _children(self, node: int) -> Int32:
        """Nodes below `node` whose first token is their own and asked for, ascending."""
        tree, children = self._requests.tree, []
        child = node + 1
        while child < tree.subtree_end[node]:
            if self._first[child] <= tree.depth[node] < tree.depth[child]:
                children.append(child)
            child = int(tree.subtree_end[child])
        return np.array(children, np.int32)

    def _first_tokens(self, nodes: Int32) -> Int64:
        tree = self._requests.tree
        tokens, offsets = self._requests.prompts
        some_request = tree.leaf_order[tree.first_leaf[nodes]]
        firsts: Int64 = tokens[offsets[some_request] + tree.depth[tree.parent[nodes]]].astype(
            np.int64
        )
        return firsts

    def _of_edge(self, node: int, k: int) -> tuple[Float32, Int32, Float32]:
        """Chosen [L], alternatives [L, k] and theirs of the L tokens on the edge of `node`."""
        tree = self._requests.tree
        if tree.depth[node] == tree.depth[tree.parent[node]]:
            return np.zeros(0, np.float32), np.zeros((0, k), np.int32), np.zeros((0, k), np.float32)
        known, parent = self._nodes[node], self._nodes.get(int(tree.parent[node]))
        siblings = () if parent is None or parent.children is None else parent.children
        at = int(np.searchsorted(siblings, node))
        if parent is None or at == len(siblings) or siblings[at] != node:
            # nothing comes before the first token, or nobody asks for it
            first = np.full(1, np.nan, np.float32)
            first_ids, first_top = np.zeros((1, k), np.int32), np.zeros((1, k), np.float32)
        else:
            first = parent.after[at : at + 1]
            first_ids, first_top = parent.after_top_ids[None, :k], parent.after_top[None, :k]
        return (
            np.concatenate([first, known.chosen]),
            np.concatenate([first_ids, known.top_ids[:, :k]]),
            np.concatenate([first_top, known.top[:, :k]]),
        )


def _new_node(start: int, end: int, k: int) -> _Node:
    size = end - start - 1
    return _Node(
        start,
        end,
        np.full(size, np.nan, np.float32),
        np.zeros((size, k), np.int32),
        np.zeros((size, k), np.float32),
    )
