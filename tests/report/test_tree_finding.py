"""One sentence about a tree."""

from pathlib import Path
from typing import Any

import pytest

from blendrun.report.tree_finding import finding
from blendrun.tree.prefix_tree import ROOT
from tiny_views import GROUPED, ROWS, view_of


def distinct(output_len: int) -> list[dict[str, Any]]:
    lengths = {"max_tokens": output_len, "output_len": output_len}
    return [{"prompt_token_ids": [i] * 50, **lengths} for i in range(8)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (ROWS, "4 groups share 89% of the prompt tokens; compute is "),
        ([*GROUPED[:12], *distinct(4)[:1]], "1 group shares 7"),
        (distinct(1), "The prompts share next to nothing; no KV is read"),
        (distinct(100_000), "The prompts share next to nothing; the KV reads are "),
        ([{"prompt": None}], "There is no request in this plan"),
    ],
)
def test_the_sentence_says_what_is_shared_and_which_side_is_heavy(
    rows: list[dict[str, Any]], sentence: str, tmp_path: Path
):
    assert finding(view_of(tmp_path, rows), ROOT).startswith(sentence)


def test_sharing_in_pairs_is_no_group(tmp_path: Path):
    rows = [{"prompt_token_ids": [i // 2] * 20 + [5000 + i], "max_tokens": 4} for i in range(1200)]
    sentence = finding(view_of(tmp_path, rows), ROOT)
    assert sentence.startswith("48% of the prompt tokens are shared, by many small groups; ")


def test_a_node_says_its_part_of_the_job(tmp_path: Path):
    view = view_of(tmp_path, ROWS)
    row = view.groups(1).rows[0]
    part = f"{row.figures.part_of(view.job):.0%}"
    expected = f"Node {row.node}: {row.figures.requests} requests, {part} of the job's compute"
    assert finding(view, row.node).startswith(expected)
