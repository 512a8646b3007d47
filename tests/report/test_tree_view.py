"""Figures of the prefix tree: they add up, and they are those of the requests."""

from dataclasses import fields
from pathlib import Path

import pyarrow.compute as pc
import pytest

from blendrun.errors import InputError
from blendrun.report.tree_view import Figures, NodeTable, TreeView
from blendrun.tree.prefix_tree import ROOT
from tiny_views import LOOSE, ROWS, view_of

SUMS = [f.name for f in fields(Figures) if f.name not in ("subtrees", "lengths_from")]


@pytest.fixture
def view(tmp_path: Path) -> TreeView:
    return view_of(tmp_path, ROWS)


def assert_adds_up(table: NodeTable, whole: Figures) -> None:
    parts = [row.figures for row in table.rows] + [table.others]
    for name in SUMS:
        above = table.above_tokens if name == "unique_tokens" else 0
        total = sum(getattr(part, name) for part in parts) + above
        assert total == pytest.approx(getattr(whole, name), rel=1e-9), name
    for origin, count in whole.lengths_from.items():
        assert sum(part.lengths_from.get(origin, 0) for part in parts) == count


def test_the_job_is_the_sum_of_its_requests(view: TreeView):
    table, plan = view.stored.requests, view.stored.plan
    job = view.job
    assert job.requests == len(ROWS) == plan.counts.requests
    assert job.prompt_tokens == pc.sum(table["prompt_len"]).as_py()
    assert job.output_tokens == pc.sum(table["expected_output_len"]).as_py()
    assert job.unique_tokens == plan.counts.unique_prompt_tokens
    assert job.lengths_from == plan.counts.lengths_from
    assert job.density == pytest.approx(plan.times.density)
    assert job.sharing_frac == pytest.approx(plan.counts.sharing_possible)


@pytest.mark.parametrize("policy", ["blend", "blendserve", "random"])
@pytest.mark.parametrize("top", [1, 3, 100])
def test_rows_and_the_rest_add_up(policy: str, top: int, tmp_path: Path):
    view = view_of(tmp_path, ROWS, policy=policy, keep_sharing=0.5)
    assert_adds_up(view.groups(top), view.job)
    for node in range(view.tree.num_nodes):
        if view.request(node) is None:
            assert_adds_up(view.children(node, top), view.row(node).figures)


def test_rows_come_by_falling_seconds_and_the_rest_is_counted(view: TreeView):
    table = view.groups(4)
    seconds = [row.figures.seconds for row in table.rows]
    assert seconds == sorted(seconds, reverse=True)
    assert len(seconds) == 4
    assert table.others.subtrees == 4 + len(LOOSE) - 4
    assert view.groups(100).others.subtrees == 0


def test_a_leaf_is_its_request(view: TreeView):
    leaves = 0
    for node in range(view.tree.num_nodes):
        request = view.request(node)
        if request is None:
            continue
        leaves += 1
        row = view.row(node)
        assert row.figures.requests == 1
        assert request["prompt_len"] == row.depth == row.figures.prompt_tokens
        assert request["expected_output_len"] == row.figures.mean_output_len
        assert row.figures.lengths_from == {request["length_from"]: 1}
        assert request["density"] == pytest.approx(row.figures.density)
        assert request["is_left"] == (request["density"] >= view.job.density)
        assert len(ROWS[request["row"]]["prompt_token_ids"]) == request["prompt_len"]
        placed = view.stored.requests["row"][request["place"]].as_py()
        assert placed == request["row"]
    assert leaves == len(ROWS)


def test_the_path_to_a_node_has_all_its_tokens(view: TreeView):
    node = int(view.tree.leaf_node[0])
    path = view.path(node)
    assert path[-1].node == node
    assert sum(row.edge_len for row in path) == path[-1].depth
    assert view.path(ROOT) == []


@pytest.mark.parametrize("node", [-1, 10_000])
def test_an_unknown_node_is_refused_with_the_range(node: int, view: TreeView):
    with pytest.raises(InputError, match=f"no node {node}") as error:
        view.path(node)
    assert f"0 to {view.tree.num_nodes - 1}" in str(error.value.hint)


def test_no_request(tmp_path: Path):
    view = view_of(tmp_path, [{"prompt_token_ids": []}])
    table = view.groups(5)
    assert table.rows == ()
    assert (view.job.requests, view.job.density, view.job.sharing_frac) == (0, None, 0.0)
    assert view.request(ROOT) is None


def test_one_request(tmp_path: Path):
    view = view_of(tmp_path, ROWS[:1])
    (row,) = view.groups(5).rows
    assert row.figures.part_of(view.job) == 1
    assert view.request(row.node)["row"] == 0


def test_equal_prompts_are_one_row_and_its_children_have_no_tokens(tmp_path: Path):
    view = view_of(tmp_path, [{"prompt_token_ids": [1, 2, 3], "max_tokens": 5}] * 4)
    (row,) = view.groups(5).rows
    assert (row.figures.requests, row.figures.unique_tokens, row.text) == (4, 3, "1 2 3")
    below = view.children(row.node, 2)
    assert [(child.edge_len, child.text) for child in below.rows] == [(0, "")] * 2
    assert below.others.requests == 2


def test_outputs_of_one_token_have_no_density(tmp_path: Path):
    view = view_of(tmp_path, [{"prompt_token_ids": [1, i], "max_tokens": 1} for i in range(3)])
    assert view.job.density is None
