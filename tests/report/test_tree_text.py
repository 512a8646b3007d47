"""The beginning of a node, in a form that is safe to print."""

import json
import shutil
from pathlib import Path

import pytest

from blendrun.report.tree_text import cut, open_tokenizer, printable
from blendrun.report.tree_view import TreeView
from tiny_jobs import plan_job
from tiny_views import view_of

PROMPTS = [{"prompt": f"the quick brown fox\n\x1b[31m {i} jumps"} for i in "ab"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[2J\x07\x00", "\\x1b[2J\\x07\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("user\u202egnp", "user\\u202egnp"),  # writes from right to left
        ("\u2028", "\\u2028"),
    ],
)
def test_what_a_terminal_acts_on_is_escaped(text: str, shown: str):
    assert printable(text) == shown


def test_a_cut_text_has_the_width_asked_for():
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 5) == "abcd…"


def test_text_is_decoded_with_the_plans_tokenizer(checkpoint: Path, tmp_path: Path):
    view = view_of(tmp_path, PROMPTS, checkpoint)
    (row,) = view.groups(5).rows
    assert row.text == "the quick brown fox\\n\\x1b[31m"
    below = sorted(child.text for child in view.children(row.node, 5).rows)
    assert below == ["… a jumps", "… b jumps"]


def test_token_ids_stand_in_for_a_tokenizer_that_is_not_there(tmp_path: Path):
    view = view_of(tmp_path, [{"prompt_token_ids": [7, 8, i]} for i in range(2)])
    assert view.text.tokenizer is None
    (row,) = view.groups(5).rows
    assert row.text == "7 8"


def test_long_beginnings_are_cut(tmp_path: Path):
    view = view_of(tmp_path, [{"prompt_token_ids": [1] * 5000}])
    (row,) = view.groups(1).rows
    assert view.text.of(row.node, 10) == "1 1 1 1 1…"
    assert view.text.of(row.node, 1000) == " ".join("1" * 128) + "…"


def test_a_tokenizer_that_moved_or_changed_is_not_used(checkpoint: Path, tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(checkpoint, model)
    path, plan = plan_job(tmp_path, PROMPTS, model)
    assert open_tokenizer(plan) is not None
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"changed": True}))
    assert open_tokenizer(plan) is None
    shutil.rmtree(model)
    view = TreeView.open(path)
    assert all(part.isdigit() for part in view.groups(5).rows[0].text.split())


def test_a_shape_can_name_a_tokenizer(checkpoint: Path, tmp_path: Path):
    view = view_of(tmp_path, PROMPTS, tokenizer=str(checkpoint))
    assert view.groups(5).rows[0].text.startswith("the quick brown fox")
