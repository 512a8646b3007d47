"""The page of a tree: whole, bounded, safe to open, and its boxes account for every request."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blendrun.errors import InputError
from blendrun.report.tree_page import MAX_NODES, page_data, save_page, tree_page
from blendrun.report.tree_text import PrefixText
from blendrun.report.tree_view import TreeView
from blendrun.tree.prefix_tree import ROOT
from tiny_views import ROWS, view_of

SUMS = ("requests", "prompt_tokens", "output_tokens", "compute_s", "memory_s")
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \"'"


def page_parts(page: str) -> tuple[dict[str, Any], str]:
    """The data of a page, and the page without its data."""
    match = re.search(r'<script type="application/json" id="tree-data">(.*?)</script>', page, re.S)
    assert match is not None
    return json.loads(match[1]), page.replace(match[1], "")


@pytest.mark.parametrize("max_nodes", [1, 2, 7, 20, 10_000])
def test_children_and_pools_make_up_each_box(max_nodes: int, tmp_path: Path):
    view = view_of(tmp_path, ROWS)
    columns = {k: np.array(v) for k, v in page_data(view, ROOT, max_nodes)["columns"].items()}
    node, up = columns["node"], columns["up"]
    kept = min(max_nodes, view.tree.num_nodes)
    assert (node[:kept] >= 0).all()
    assert (node[kept:] == -1).all()
    assert (up[0], columns["requests"][0]) == (-1, len(ROWS))
    assert (up[1:kept] < np.arange(1, kept)).all()
    if max_nodes > view.tree.num_nodes:
        assert len(node) == view.tree.num_nodes
    for place in range(kept):
        below = up == place
        if not below.any():
            assert columns["row"][place] >= 0  # a request
            continue
        for name in SUMS:
            expected = pytest.approx(columns[name][place], rel=1e-6)
            assert columns[name][below].sum() == expected, name
        own = columns["edge"][place]
        assert columns["unique_tokens"][below].sum() + own == columns["unique_tokens"][place]
        children = (view.tree.parent[1:] == node[place]).sum()
        assert columns["subtrees"][below].sum() == children


def test_the_widest_nodes_are_kept(tmp_path: Path):
    view = view_of(tmp_path, ROWS)
    kept = page_data(view, ROOT, 9)["columns"]["node"][:9]
    seconds = view.seconds(np.arange(view.tree.num_nodes, dtype=np.int32))
    assert seconds[kept].min() >= np.delete(seconds, kept).max()


def test_a_page_of_a_node_holds_what_is_below_it(tmp_path: Path):
    view = view_of(tmp_path, ROWS)
    row = view.groups(1).rows[0]
    columns = page_data(view, row.node)["columns"]
    assert columns["node"][0] == row.node
    assert len(columns["node"]) == view.tree.subtree_end[row.node] - row.node
    assert columns["requests"][0] == row.figures.requests
    assert f"Node {row.node}: " in tree_page(view, row.node)


@pytest.mark.parametrize("rows", [[{"prompt_token_ids": []}], ROWS[:1], ROWS[:1] * 5])
def test_small_jobs_have_a_page(rows: list[dict[str, Any]], tmp_path: Path):
    view = view_of(tmp_path, rows)
    data, _ = page_parts(tree_page(view, ROOT))
    leaves = [row for row in data["columns"]["row"] if row >= 0]
    assert len(leaves) == view.tree.num_requests


def test_prompt_text_does_nothing_in_the_page(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": f"{HOSTILE} {i}", "max_tokens": 4} for i in range(3)]
    view = view_of(tmp_path, rows, checkpoint)
    page = tree_page(view, ROOT)
    data, rest = page_parts(page)
    texts = " ".join(data["columns"]["text"])
    assert HOSTILE in texts  # as data, unchanged
    assert page.count("</script>") == 2  # the page's own
    assert "<!--" not in page
    assert "alert" in rest  # in the table of groups
    assert "<img" not in rest
    assert "&lt;/script&gt;" in rest


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path):
    page = tree_page(view_of(tmp_path, ROWS), ROOT)
    assert not re.search(r"https?:|//[a-z]+\.|src=|@import|url\(", page)
    assert page.startswith("<!doctype html>")
    assert "<title>4 groups share" in page


@pytest.mark.parametrize("piece", ["\U0001f600", "<!", "</", "\\"])
def test_the_longest_page_stays_under_three_megabytes(
    piece: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # every second node that is kept has a pool below it
    rows = [
        {"prompt_token_ids": [i // 3, 5 + i], "max_tokens": 1 + i % 50}
        for i in range(3 * MAX_NODES)
    ]
    view = view_of(tmp_path, rows)
    monkeypatch.setattr(PrefixText, "of", lambda _text, _node, width: (piece * width)[:width])
    page = tree_page(view, ROOT).encode()
    assert 800_000 < len(page) < 3_000_000
    assert len(page_parts(page.decode())[0]["columns"]["node"]) > 1.5 * MAX_NODES


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path):
    view: TreeView = view_of(tmp_path, ROWS[:2])
    save_page(view, ROOT, tmp_path / "tree.html")
    first = (tmp_path / "tree.html").read_bytes()
    save_page(view, ROOT, tmp_path / "tree.html")
    assert (tmp_path / "tree.html").read_bytes() == first
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(InputError, match="is not a page"):
        save_page(view, ROOT, tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_bytes() == before
