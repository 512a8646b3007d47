"""`blendrun inspect`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli.inspect_table import print_node, print_overview
from blendrun.cli.output import stdout_may_close
from blendrun.report.tree_json import node_json, overview_json
from blendrun.report.tree_page import save_page
from blendrun.report.tree_view import TreeView
from blendrun.tree.prefix_tree import ROOT


def inspect(
    plan: Annotated[Path, typer.Argument(help="A plan.")],
    node: Annotated[
        int | None, typer.Option(help="Show this node: the path to it and what is below.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Largest subtrees to list.")] = 20,
    html: Annotated[
        Path | None, typer.Option(help="Write a picture of the tree (or of --node) to open.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What the planner saw: the prefix tree, what it shares and what each part of it costs."""
    view = TreeView.open(plan)
    path = [] if node is None else view.path(node)
    table = view.groups(top) if node is None else view.children(node, top)
    if html is not None:
        save_page(view, ROOT if node is None else node, html)
    with stdout_may_close():
        if as_json:
            made = overview_json(view, table) if node is None else node_json(view, path, table)
            typer.echo(json.dumps(made, allow_nan=False))
        elif node is None:
            print_overview(view, table)
        else:
            print_node(view, node, path, table)
        if html is not None:
            typer.echo(f"page: {html}", err=as_json)
