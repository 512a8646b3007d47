"""Outputs of an earlier run as a source of expected lengths.

Its prompts are found in the new job's tree by content. Knows lengths, not texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.data.answers import answer_keys
from blendrun.data.results import keys_of, read_answers
from blendrun.data.token_store import TokenStore
from blendrun.schedule.plan_file import StoredPlan, read_plan, window_paths
from blendrun.schedule.run_plan import plan_of_run
from blendrun.tree.annotate import Float64
from blendrun.tree.match import content_node, match_prompts
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree
from blendrun.tree.strata import top_subtrees

SEEN_SCHEMA = pa.schema([("request", pa.int32()), ("output_len", pa.int32())])
MOST_SEEN = 200  # per top subtree, so that what the run itself sees soon outweighs it


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Output lengths that an earlier run had, where they belong in the tree of K nodes."""

    node: Int32  # [M] deepest node whose path the prompt begins with
    lengths: Int32  # [M] output tokens
    same_prompt: Int32  # [M'] indices of those whose prompt is one of the job's

    @classmethod
    def joined(cls, parts: Sequence["Observed"]) -> Self:
        """The outputs of several runs; of none, nothing."""
        none = np.zeros(0, np.int32)
        first = np.cumsum([0, *(len(part.node) for part in parts)])[:-1]
        same = [start + part.same_prompt for start, part in zip(first, parts, strict=True)]
        return cls(
            np.concatenate([none, *(part.node for part in parts)]),
            np.concatenate([none, *(part.lengths for part in parts)]),
            np.concatenate([none, *same]).astype(np.int32),
        )

    def of_same_prompt(self, tree: PrefixTree) -> tuple[Float64, Int64]:
        """Mean length of the outputs of each request's own prompt, [N], and their number."""
        count = np.bincount(self.node[self.same_prompt], minlength=tree.num_nodes)
        total = np.bincount(
            self.node[self.same_prompt], self.lengths[self.same_prompt], tree.num_nodes
        )
        at = content_node(tree)
        return total[at] / np.maximum(count[at], 1), count[at].astype(np.int64)

    def strata(self, tree: PrefixTree) -> Int32:
        """The top subtree that each output belongs to, int32 [M]; -1 above all of them."""
        _, nodes = top_subtrees(tree)
        of_node = np.full(tree.num_nodes, -1, np.int32)
        for number, node in enumerate(nodes.tolist()):  # lower ones overwrite
            of_node[node : tree.subtree_end[node]] = number
        return of_node[self.node]

    def examples(self, tree: PrefixTree, seed: int) -> pa.Table:
        """Some outputs of each top subtree, `SEEN_SCHEMA`: each with a request that is like it."""
        if not len(self.node):
            return SEEN_SCHEMA.empty_table()
        present, alike = np.unique(top_subtrees(tree)[0], return_index=True)
        mine = self.strata(tree)
        order = np.random.default_rng(seed).permutation(len(mine))
        order = order[np.argsort(mine[order], kind="stable")]
        _, start, count = np.unique(mine[order], return_index=True, return_counts=True)
        turn = np.arange(len(order)) - np.repeat(start, count)
        chosen = order[(turn < MOST_SEEN) & np.isin(mine[order], present)]
        request = alike[np.searchsorted(present, mine[chosen])].astype(np.int32)
        columns = [pa.array(request), pa.array(self.lengths[chosen])]
        return pa.Table.from_arrays(columns, schema=SEEN_SCHEMA)


def observe(run_dir: Path, tree: PrefixTree, store: TokenStore) -> Observed:
    """What the run in `run_dir`, complete or not, tells about the prompts of `tree`.

    Raises:
        InputError: the folder holds no run.
        PlanError: its plan is gone or belongs to another job by now.
    """
    parts = []
    for stored, request, output_len in _outputs(run_dir):
        tokens, offsets = _prompts(stored.store, request)
        found = match_prompts(tree, store.tokens, store.offsets, tokens, offsets)
        same = np.flatnonzero(found.is_whole).astype(np.int32)
        parts.append(Observed(found.node, output_len, same))
    return Observed.joined(parts)


def _outputs(run_dir: Path) -> Iterator[tuple[StoredPlan, Int32, Int32]]:
    """Each window of the run's plan, its answered requests and their output lengths."""
    _, path, plan = plan_of_run(run_dir)
    answers = read_answers(run_dir, ["status", "num_output_tokens"])
    answers = answers.filter(pc.equal(answers["status"], "ok"))
    keys = keys_of(answers)
    output_len = answers["num_output_tokens"].to_numpy().astype(np.int32)
    for window in window_paths(path, plan):
        stored = read_plan(window)
        order = np.argsort(stored.requests["request"].to_numpy())
        wanted = answer_keys(*(stored.requests[n].to_numpy()[order] for n in ("row", "sample")))
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = keys[place] == wanted if len(keys) else np.zeros(len(wanted), bool)
        yield stored, np.flatnonzero(found).astype(np.int32), output_len[place[found]]


def _prompts(store: TokenStore, request: Int32) -> tuple[Int32, Int64]:
    """Prompts of some requests; those of all without a copy."""
    if len(request) == len(store):
        return store.tokens, store.offsets
    prompts = [store[i] for i in request.tolist()]
    lengths = [len(prompt) for prompt in prompts]
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return np.concatenate([np.zeros(0, np.int32), *prompts]), offsets
