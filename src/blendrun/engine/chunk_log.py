"""What happened in a simulated run, as tables with which anyone can price it again.

A request is prefilled by its chunks; from the step after the last one it decodes in every step,
one token each. The format is in docs/files.md.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.disk import make_folder
from blendrun.engine.simulated_job import Outcome, SimulatedJob
from blendrun.errors import InputError
from blendrun.tree.prefix_tree import Int32, PrefixTree

_TABLES = ("chunks", "preemptions", "requests", "nodes")


def check_log_folder(folder: Path) -> None:
    """Raises InputError where `folder` holds anything but a chunk log."""
    ours = {f"{name}.parquet" for name in _TABLES}
    strangers = [
        path
        for path in (folder.rglob("*") if folder.is_dir() else ())
        if path.is_file() and path.name not in ours
    ]
    if strangers or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} holds something else", "give --chunk-log an empty folder")


def write_chunk_log(folder: Path, outcome: Outcome, job: SimulatedJob) -> None:
    """Write chunks, preemptions, requests and nodes; several ranks have a folder each."""
    many = len(outcome.ranks) > 1
    tree = outcome.order.tree
    for rank, (simulated, part) in enumerate(zip(outcome.ranks, outcome.parts, strict=True)):
        place = folder / f"rank-{rank}" if many else folder
        make_folder(place)
        columns = ("step", "request", "start", "end")
        sent_back = simulated.chunks[:, 3] == 0
        chunks = simulated.chunks[~sent_back]
        table = pa.table({name: chunks[:, i] for i, name in enumerate(columns)})
        pq.write_table(table, place / "chunks.parquet")
        lost = simulated.chunks[sent_back]
        preemptions = pa.table({"step": lost[:, 0], "request": lost[:, 1]})
        pq.write_table(preemptions, place / "preemptions.parquet")
        leaf = tree.leaf_node[part]
        requests = {
            "id": part,
            "node": tree.parent[leaf],
            "own": tree.edge_len[leaf],
            "prompt": tree.depth[leaf],
            "output": job.output_len[part],
        }
        pq.write_table(pa.table(requests), place / "requests.parquet")
        inner = _nodes_above(tree, part)
        nodes = {
            "id": inner,
            "parent": tree.parent[inner],
            "length": tree.edge_len[inner],
            "end": tree.depth[inner],
        }
        pq.write_table(pa.table(nodes), place / "nodes.parquet")


def _nodes_above(tree: PrefixTree, requests: Int32) -> Int32:
    """Nodes that are no leaves and have one of `requests` below, the root among them."""
    used = tree.count_below(requests) > 0
    used[tree.leaf_node] = False
    return np.flatnonzero(used).astype(np.int32)
