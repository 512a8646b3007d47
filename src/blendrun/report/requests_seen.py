"""What came of single requests: sharing by group of prompts, and lengths against expectations."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from blendrun.data.results import read_answers
from blendrun.report.bounds import by_request
from blendrun.report.tree_view import TreeView
from blendrun.tree.annotate import Float64

_TOP = 12
_COUNTS = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens")


@dataclass(frozen=True, slots=True)
class GroupSharing:
    """Of a group of prompts that begin alike, as `inspect` lists them."""

    node: int
    requests: int
    prompt_tokens: int
    possible_frac: float  # of its prompt tokens need not be computed
    achieved_frac: float  # were taken from another request's work
    text: str  # with which they begin

    @property
    def lost_tokens(self) -> int:
        return round(max(self.possible_frac - self.achieved_frac, 0.0) * self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class RequestsSeen:
    groups: tuple[GroupSharing, ...]  # the largest
    num_others: int  # groups that are not among them
    expected_output: Float64  # [N] of answered requests, tokens
    true_output: Float64  # [N]


def requests_seen(plan: Path, run_dir: Path) -> RequestsSeen:
    """Of a complete run of a plan without windows."""
    view = TreeView.open(plan)
    answers = read_answers(run_dir, _COUNTS)
    prompt, cached, output = (
        by_request(view.stored, answers, pc.fill_null(answers[name], 0).to_numpy())
        for name in _COUNTS
    )
    in_leaves = cached[view.tree.leaf_order]
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(in_leaves, dtype=np.int64)])
    table = view.groups(_TOP)
    groups = tuple(
        GroupSharing(
            node=row.node,
            requests=row.figures.requests,
            prompt_tokens=row.figures.prompt_tokens,
            possible_frac=row.figures.sharing_frac,
            achieved_frac=int(view.below(running, np.array([row.node], np.int32))[0])
            / max(row.figures.prompt_tokens, 1),
            text=row.text,
        )
        for row in table.rows
    )
    expected = np.empty(len(output))
    requests = view.stored.requests
    expected[requests["request"].to_numpy()] = requests["expected_output_len"].to_numpy()
    ran = (output > 0) & (cached < np.maximum(prompt, 1))  # no error rows, no copies
    return RequestsSeen(
        groups, table.others.subtrees, expected[ran], output[ran].astype(np.float64)
    )
