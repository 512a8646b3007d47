"""One self-contained HTML page with a picture of the prefix tree that can be zoomed.

Width is compute plus KV reads, which add up over subtrees. The page holds the widest nodes; the
others of a parent are pooled into one rectangle, so that a page stays small whatever the tree.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from blendrun.data.disk import atomic_file
from blendrun.errors import InputError
from blendrun.report.density_steps import STEPS
from blendrun.report.tree_finding import finding
from blendrun.report.tree_view import TreeView
from blendrun.tree.prefix_tree import Int32, Int64

MAX_NODES = 4000  # with the longest texts, under 3 MB
TEXT_WIDTH = 120
TABLE_ROWS = 30
_MARK = b"<!doctype html>"


def save_page(view: TreeView, root: int, path: Path, max_nodes: int = MAX_NODES) -> None:
    """Write the page of the subtree of `root`.

    Raises:
        InputError: `path` holds something else than a page.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_MARK)) not in (_MARK, b""):
                raise InputError(f"{path} exists and is not a page", "give the page another name")
    with atomic_file(path) as file:
        file.write(tree_page(view, root, max_nodes).encode())


def tree_page(view: TreeView, root: int, max_nodes: int = MAX_NODES) -> str:
    """The text of the page."""
    folder = files("blendrun.report")
    read = {
        name: folder.joinpath(f"tree_page.{name}").read_text() for name in ("html", "css", "js")
    }
    table = view.children(root, TABLE_ROWS) if root else view.groups(TABLE_ROWS)
    plan = view.stored.plan
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return template.from_string(read["html"]).render(
        css=read["css"],
        js=read["js"],
        data=_script_json(page_data(view, root, max_nodes)),
        finding=finding(view, root),
        root=root,
        plan=plan,
        plan_name=view.stored.path.name,
        created=plan.created[:10],
        job=view.job,
        table=table,
        steps=STEPS,
    )


def page_data(view: TreeView, root: int, max_nodes: int = MAX_NODES) -> dict[str, Any]:
    """Columns over the widest nodes below `root`, parents first, then over the pooled rest.

    `up` is the place of a node's parent in the columns, -1 for `root`. A pooled entry has node -1
    and the number of `subtrees` in it.
    """
    tree = view.tree
    inside = np.arange(root, tree.subtree_end[root], dtype=np.int32)
    # a parent is at least as wide as its child and comes before it, so it is never left out
    kept = inside[np.argsort(-view.seconds(inside), kind="stable")[:max_nodes]]
    place = np.full(tree.num_nodes, -1, np.int32)
    place[kept] = np.arange(len(kept))
    up = place[tree.parent[kept]]
    up[0] = -1
    sums = view.columns(kept)
    nodes = {
        "up": up,
        "node": kept,
        "subtrees": np.ones(len(kept), np.int32),
        "edge": tree.edge_len[kept],
        "depth": tree.depth[kept],
        "row": _input_rows(view, kept),
        **sums,
    }
    pooled = _pooled(view, kept, up, sums, inside)
    columns = {name: _plain(np.concatenate([nodes[name], pooled[name]])) for name in nodes}
    numbers = kept.tolist()
    # not of pooled entries, which only the numbers describe
    columns["text"] = [view.text.of(node, TEXT_WIDTH) if node else "" for node in numbers]
    columns["origin"] = _origins(view, kept)
    return {
        "root": root,
        "steps": STEPS,
        "job_seconds": view.job.seconds,
        "job_density": view.job.density,
        "columns": columns,
    }


def _input_rows(view: TreeView, nodes: Int32) -> Int64:
    """Input row of the request that ends in each node, -1 where others lie below."""
    tree, table = view.tree, view.stored.requests
    row_of = np.empty(tree.num_requests, np.int64)
    row_of[table["request"].to_numpy()] = table["row"].to_numpy()
    rows = np.full(len(nodes), -1, np.int64)
    is_leaf = (tree.subtree_end[nodes] == nodes + 1) & (tree.request_count[nodes] == 1)
    rows[is_leaf] = row_of[tree.leaf_order[tree.first_leaf[nodes[is_leaf]]]]
    return rows


def _origins(view: TreeView, nodes: Int32) -> list[str]:
    """Where the expected lengths below each node come from, with counts where that differs."""
    requests = view.tree.request_count[nodes].tolist()
    texts: list[list[str]] = [[] for _ in requests]
    for origin, running in view.origins.items():
        for text, count, whole in zip(
            texts, view.below(running, nodes).tolist(), requests, strict=True
        ):
            if count:
                text.append(origin if count == whole else f"{origin} ({count:,})")
    return [", ".join(text) for text in texts]


def _pooled(
    view: TreeView, kept: Int32, up: Int32, sums: dict[str, np.ndarray], inside: Int32
) -> dict[str, np.ndarray]:
    """What each kept node has below it beyond its kept children."""
    tree = view.tree
    num_children = np.bincount(tree.parent[inside[1:]], minlength=tree.num_nodes)[kept]
    missing = num_children - np.bincount(up[1:], minlength=len(kept))
    parent = np.flatnonzero(missing).astype(np.int32)
    pooled: dict[str, np.ndarray] = {"up": parent, "subtrees": missing[parent]}
    for name in ("node", "edge", "depth", "row"):
        pooled[name] = np.full(len(parent), -1)
    for name, values in sums.items():
        rest = values - np.bincount(up[1:], values[1:], minlength=len(kept))
        if name == "unique_tokens":
            rest = rest - tree.edge_len[kept]
        pooled[name] = np.maximum(rest, 0)[parent].astype(values.dtype)
    return pooled


def _plain(values: np.ndarray) -> list[Any]:
    """For JSON; seconds to seven digits."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    return [float(f"{value:.7g}") for value in values.tolist()]


def _script_json(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("</", "<\\/").replace("<!", "\\u003c!")
