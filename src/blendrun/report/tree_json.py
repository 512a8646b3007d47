"""The figures of a prefix tree for scripts."""

from typing import Any

from blendrun.report.tree_view import Figures, NodeRow, NodeTable, TreeView
from blendrun.tree.prefix_tree import ROOT


def overview_json(view: TreeView, table: NodeTable) -> dict[str, Any]:
    return {
        "plan": str(view.stored.path),
        "nodes": view.tree.num_nodes,
        "job": _figures(view.job, view.job),
        "groups": _table(table, view.job),
    }


def node_json(view: TreeView, path: list[NodeRow], table: NodeTable) -> dict[str, Any]:
    """A node by its path from the root, with its children or with the request that ends in it."""
    node = path[-1].node if path else ROOT
    record: dict[str, Any] = {
        "plan": str(view.stored.path),
        "nodes": view.tree.num_nodes,
        "job": _figures(view.job, view.job),
        "node": _row(view.row(node), view.job),
        "path": [_row(row, view.job) for row in path],
    }
    request = view.request(node)
    if request is None:
        return record | {"children": _table(table, view.job)}
    # without KV reads the density is infinite, which JSON does not have
    return record | {"request": request | {"density": record["node"]["density"]}}


def _table(table: NodeTable, job: Figures) -> dict[str, Any]:
    return {
        "rows": [_row(row, job) for row in table.rows],
        "others": _figures(table.others, job),
        "above_tokens": table.above_tokens,
    }


def _row(row: NodeRow, job: Figures) -> dict[str, Any]:
    about = {"node": row.node, "edge_tokens": row.edge_len, "depth_tokens": row.depth}
    return about | _figures(row.figures, job) | {"text": row.text}


def _figures(of: Figures, job: Figures) -> dict[str, Any]:
    return {
        "subtrees": of.subtrees,
        "requests": of.requests,
        "prompt_tokens": of.prompt_tokens,
        "unique_tokens": of.unique_tokens,
        "sharing_frac": of.sharing_frac,
        "compute_s": of.compute_s,
        "memory_s": of.memory_s,
        "job_frac": of.part_of(job),
        "density": of.density,
        "output_tokens": of.output_tokens,
        "mean_output_len": of.mean_output_len,
        "lengths_from": dict(of.lengths_from),
    }
