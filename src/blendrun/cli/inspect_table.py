"""The screens of `blendrun inspect`: the groups of a job, or one node of its prefix tree."""

import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blendrun.cli.plan_table import figures
from blendrun.report.density_steps import STEPS, density_step
from blendrun.report.tree_view import Figures, NodeRow, NodeTable, TreeView
from blendrun.units import count_of, format_count, format_seconds

_NARROW = 120  # columns; a smaller terminal gets fewer figures
_LEFT, _RIGHT = "cyan", "yellow"
_WORDS = ("beginning", "length from", "vs job")
NO_EDGE = "(no tokens of its own)"

Cell = str | Text


def print_overview(view: TreeView, table: NodeTable) -> None:
    out = _console()
    plan, job = view.stored.plan, view.job
    _say(out, f"{plan.model.name} on {plan.hardware}, cost {plan.cost}, policy {plan.policy}")
    out.print(figures([("nodes", f"{view.tree.num_nodes:,}"), *_own_figures(job, job)]))
    _print_splits(out, view)
    if not job.requests:
        out.print("there is no request in this plan")
        return
    _print_rows(out, table, job)


def print_node(view: TreeView, node: int, path: Sequence[NodeRow], table: NodeTable) -> None:
    out = _console()
    job, row = view.job, view.row(node)
    _say(out, f"node {node} of {view.tree.num_nodes:,}")
    if path:
        _print_table(out, ["node", "requests", "tokens", "up to", "beginning"], _path(path))
        out.print()
    out.print(figures(_own_figures(row.figures, job)))
    request = view.request(node)
    if request is not None:
        out.print(figures(_request(request)))
    elif table.rows:
        _print_rows(out, table, job)


def _own_figures(of: Figures, job: Figures) -> list[tuple[str, str]]:
    lengths = ", ".join(f"{count:,} from {origin}" for origin, count in of.lengths_from.items())
    note = "compute over KV reads" if of is job else f"the job's is {_density(job.density)}"
    mean = f"{of.mean_output_len:,.0f} a request"
    rows = [
        ("requests", f"{of.requests:,}"),
        ("prompt tokens", format_count(of.prompt_tokens)),
        ("unique prompt tokens", format_count(of.unique_tokens)),
        ("sharing", f"{of.sharing_frac:.1%}  of the prompt tokens"),
        (
            "expected output tokens",
            f"{format_count(of.output_tokens)}  {', '.join(filter(None, (mean, lengths)))}",
        ),
        ("compute", f"{format_seconds(of.compute_s)}  each prefix once"),
        ("KV reads", format_seconds(of.memory_s)),
        ("density", f"{_density(of.density)}  {note}"),
    ]
    if of is not job:
        rows.append(("share of the job", f"{of.part_of(job):.1%}  of compute and KV reads"))
    return rows


def _request(request: dict[str, object]) -> list[tuple[str, str]]:
    side = "left  at or above" if request["is_left"] else "right  below"
    return [
        ("input row", f"{request['row']:,}  from 0, over all files"),
        ("place in the schedule", f"{request['place']:,}  from 0"),
        ("prompt length", f"{request['prompt_len']:,}"),
        ("max_tokens", f"{request['max_tokens']:,}"),
        (
            "expected output length",
            f"{request['expected_output_len']:,}  from {request['length_from']}",
        ),
        ("side", f"{side} the job's density"),
    ]


def _path(path: Sequence[NodeRow]) -> list[list[Cell]]:
    return [
        [
            str(row.node),
            f"{row.figures.requests:,}",
            f"{row.edge_len:,}",
            f"{row.depth:,}",
            _said(row),
        ]
        for row in path
    ]


def _print_rows(out: Console, table: NodeTable, job: Figures) -> None:
    narrow = out.width < _NARROW
    names = ["node", "requests", *([] if narrow else ["prompt tokens", "unique"]), "shared",
             "of job", "density", "vs job", "output", *([] if narrow else ["length from"]),
             "beginning"]  # fmt: skip
    rows = [[str(row.node), *_cells(row.figures, job, narrow), _said(row)] for row in table.rows]
    if table.others.subtrees:
        label = count_of(table.others.subtrees, "other subtree")
        rows.append(["", *_cells(table.others, job, narrow), label])
    out.print()
    _print_table(out, names, rows)
    if table.above_tokens:
        tokens = count_of(table.above_tokens, "unique token")
        out.print(f"the nodes above these have {tokens} more")
    steps = ", ".join(f"{step:g}" for step in STEPS)
    out.print(f"vs job: = left, more compute; right, more KV reads; one from {steps} times")


def _cells(of: Figures, job: Figures, narrow: bool) -> list[Cell]:
    tokens = [format_count(of.prompt_tokens), format_count(of.unique_tokens)]
    return [
        f"{of.requests:,}",
        *([] if narrow else tokens),
        f"{of.sharing_frac:.0%}",
        f"{of.part_of(job):.1%}",
        _density(of.density),
        _bar(density_step(of.density, job.density)),
        f"{of.mean_output_len:,.0f}",
        *([] if narrow else [_origin(of)]),
    ]


def _bar(step: int) -> Text:
    left, right = "=" * max(step, 0), "=" * max(-step, 0)
    width = len(STEPS)
    return Text.assemble((left.rjust(width), _LEFT), "|", (right.ljust(width), _RIGHT))


def _origin(of: Figures) -> str:
    """The origin of most lengths, and of how many if not of all."""
    if not of.lengths_from:
        return ""
    name, count = max(of.lengths_from.items(), key=lambda pair: pair[1])
    return name if count == of.requests else f"{name} {count / of.requests:.0%}"


def _density(density: float | None) -> str:
    return "no KV" if density is None else f"{density:.3g}"


def _said(row: NodeRow) -> str:
    return row.text or NO_EDGE


def _print_table(out: Console, names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print cells as they are; the last column, prompt text, is cut to the room that is left."""
    gap = 1 if out.width < _NARROW else 2
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, gap, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=True)
    width = [max(map(cell_len, map(str, column))) for column in zip(names, *rows, strict=True)]
    room = max(out.width - sum(width[:-1]) - gap * len(width), 0)
    for *cells, said in rows:
        # no markup, and nothing that the output cannot write
        plain = str(said).encode(out.encoding, "backslashreplace").decode(out.encoding)
        last = Text(plain)
        last.truncate(room, overflow="ellipsis" if out.encoding.startswith("utf") else "crop")
        table.add_row(*cells, last)
    out.print(table)


def _print_splits(out: Console, view: TreeView) -> None:
    again = view.tree.num_unique_tokens - view.stored.plan.counts.unique_prompt_tokens
    if again:
        _say(out, f"the planner split the tree: {count_of(again, 'prompt token')} more to compute")


def _say(out: Console, text: str) -> None:
    out.print(text, markup=False)


def _console() -> Console:
    """For stdout; as wide as the terminal, and wide enough to be read by programs elsewhere."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 180)
