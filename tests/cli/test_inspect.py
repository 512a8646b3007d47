"""`blendrun inspect`: tables for people, JSON for scripts, a page, and errors that help."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli_words import Blendrun, Said
from tiny_jobs import SHAPE, write_rows
from tiny_views import ROWS


@pytest.fixture
def plan(tmp_path: Path, blendrun: Blendrun) -> Path:
    source = write_rows(tmp_path / "job.jsonl", ROWS)
    words = ["plan", source, "-o", "plan.json", "--model", SHAPE, "--hardware", "h200"]
    assert blendrun(*words).code == 0
    return tmp_path / "plan.json"


def table_rows(said: Said) -> list[list[str]]:
    """Cells of the table of nodes, by two blanks or more."""
    lines = said.out.splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(r" *node +requests +prompt", line))
    rows = [re.split(r" {2,}", line.strip()) for line in lines[start + 1 :]]
    return rows[: next(i for i, row in enumerate(rows) if len(row) < 5)]


def test_overview_has_totals_groups_and_the_rest(plan: Path, blendrun: Blendrun):
    said = blendrun("inspect", plan, "--top", "3")
    assert (said.code, said.err) == (0, "")
    assert re.search(rf"requests +{len(ROWS)}\b", said.out)
    assert re.search(r"sharing +8\d\.\d%", said.out)
    *rows, rest = table_rows(said)
    assert len(rows) == 3
    assert rest[-1] == "7 other subtrees"
    assert sum(int(row[1]) for row in rows) + int(rest[0]) == len(ROWS)


def test_json_has_the_same_rows(plan: Path, blendrun: Blendrun):
    rows = table_rows(blendrun("inspect", plan, "--top", "4"))[:-1]
    said = blendrun("inspect", plan, "--top", "4", "--json")
    found = json.loads(said.out)
    assert said.out.count("\n") == 1
    groups = found["groups"]["rows"]
    assert [str(group["node"]) for group in groups] == [row[0] for row in rows]
    for group, row in zip(groups, rows, strict=True):
        assert f"{group['requests']:,}" == row[1]
        assert f"{group['sharing_frac']:.0%}" == row[4]
        assert group["text"].startswith(row[-1].rstrip("…"))
    total = sum(group["job_frac"] for group in groups) + found["groups"]["others"]["job_frac"]
    assert total == pytest.approx(1)
    assert found["job"]["requests"] == len(ROWS)


def test_a_node_shows_the_way_to_it_and_what_is_below(plan: Path, blendrun: Blendrun):
    made = json.loads(blendrun("inspect", plan, "--json").out)
    node = made["groups"]["rows"][0]["node"]
    said = blendrun("inspect", plan, "--node", node)
    assert said.code == 0
    assert said.out.startswith(f"node {node} of {made['nodes']}\n")
    assert re.search(r"share of the job +\d+\.\d%", said.out)
    below = json.loads(blendrun("inspect", plan, "--node", node, "--json").out)
    assert [row["node"] for row in below["path"]][-1] == node
    children = below["children"]["rows"]
    assert [row[0] for row in table_rows(said)] == [str(child["node"]) for child in children]
    requests = sum(child["requests"] for child in children)
    assert requests + below["children"]["others"]["requests"] == below["node"]["requests"]


def test_a_leaf_shows_its_request(plan: Path, blendrun: Blendrun):
    said = blendrun("inspect", plan, "--node", "3", "--json")
    while "request" not in (found := json.loads(said.out)):
        said = blendrun("inspect", plan, "--json", "--node", found["children"]["rows"][0]["node"])
    request, node = found["request"], found["node"]["node"]
    text = blendrun("inspect", plan, "--node", node).out
    assert re.search(rf"input row +{request['row']}\b", text)
    assert re.search(rf"prompt length +{request['prompt_len']}\b", text)
    expected = rf"expected output length +{request['expected_output_len']} +from "
    assert re.search(expected + request["length_from"], text)
    assert re.search(r"side +left" if request["is_left"] else r"side +right", text)


@pytest.mark.parametrize("node", ["-1", "99999"])
def test_an_unknown_node_is_refused_with_the_valid_ones(node: str, plan: Path, blendrun: Blendrun):
    said = blendrun("inspect", plan, "--node", node)
    assert said.code == 2
    assert f"there is no node {node}" in said.err
    assert re.search(r"hint: nodes are 0 to \d+", said.err)


def test_what_is_no_plan_or_no_page_is_refused(plan: Path, tmp_path: Path, blendrun: Blendrun):
    assert blendrun("inspect", "none.json").code == 2
    assert blendrun("inspect", plan, "--top", "0").code == 2
    assert blendrun("inspect", plan, "--html", tmp_path).code == 2
    assert blendrun("inspect", plan, "--html", tmp_path / "none" / "tree.html").code != 0
    said = blendrun("inspect", plan, "--html", plan)
    assert said.code == 2
    assert "is not a page" in said.err


def test_a_page_is_written_beside_the_table(plan: Path, tmp_path: Path, blendrun: Blendrun):
    said = blendrun("inspect", plan, "--html", "tree.html")
    assert said.out.splitlines()[-1] == "page: tree.html"
    assert (tmp_path / "tree.html").read_text().startswith("<!doctype html>")
    said = blendrun("inspect", plan, "--html", "tree.html", "--json")
    assert json.loads(said.out)
    assert said.err == "page: tree.html\n"


def test_a_piped_table_has_one_line_per_row_and_no_codes(
    plan: Path, blendrun: Blendrun, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "40")
    said = blendrun("inspect", plan)
    assert "\x1b" not in said.out
    assert all(len(row) >= 10 for row in table_rows(said))


def test_prompts_do_not_act_on_the_terminal(tmp_path: Path, checkpoint: Path, blendrun: Blendrun):
    hostile = "\x1b[2J\x9b1m[bold]:smile:\r\n\u202e"
    rows = [{"prompt": f"{hostile}{i}", "max_tokens": 4} for i in range(4)]
    write_rows(tmp_path / "bad.jsonl", rows)
    assert blendrun("plan", "bad.jsonl", "--model", checkpoint, "--hardware", "cpu").code == 0
    said = blendrun("inspect", "plan.json")
    assert not set(said.out) & set("\x1b\x9b\r\u202e")
    assert "\\x1b[2J\\x9b1m[bold]:smile:\\r\\n\\u202e" in said.out


def test_a_plan_without_requests_says_so(tmp_path: Path, blendrun: Blendrun):
    write_rows(tmp_path / "bad.jsonl", [{"prompt_token_ids": []}])
    assert blendrun("plan", "bad.jsonl", "--model", SHAPE, "--hardware", "h200").code == 0
    said = blendrun("inspect", "plan.json", "--html", "tree.html")
    assert said.code == 0
    assert "there is no request in this plan" in said.out
    assert json.loads(blendrun("inspect", "plan.json", "--json").out)["groups"]["rows"] == []


def test_a_split_tree_is_pointed_out(tmp_path: Path, blendrun: Blendrun):
    def row(i: int) -> dict[str, Any]:
        """Two groups, one with mostly long answers, one with mostly short ones."""
        group, is_long = i % 2, (i // 2 % 10 < 3) == bool(i % 2)
        prompt = [*[5 + group] * 40, *[i] * (1 if is_long else 900)]
        return {"prompt_token_ids": prompt, "max_tokens": 8000 if is_long else 1}

    rows = [row(i) | {"output_len": 7000} for i in range(400)]
    write_rows(tmp_path / "split.jsonl", rows)
    words = ["--model", SHAPE, "--hardware", "h200", "--policy", "blendserve"]
    assert blendrun("plan", "split.jsonl", *words, "--keep-sharing", "0.3").code == 0
    said = blendrun("inspect", "plan.json")
    assert re.search(r"the planner split the tree: [\d,]+ prompt tokens more", said.out)
