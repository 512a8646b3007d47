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


def write_chunk_log(folder: Path, outcome: Outcome, job: SimulatedJob) -> None:
    """Write chunks, preemptions, requests and nodes; several ranks have a folder each."""
    many = len(outcome.ranks) > 1
    tree = outcome.order.tree
    inner = np.setdiff1d(np.arange(tree.num_nodes), tree.leaf_node)
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
        nodes = {
            "id": inner,
            "parent": tree.parent[inner],
            "length": tree.edge_len[inner],
            "end": tree.depth[inner],
        }
        pq.write_table(pa.table(nodes), place / "nodes.parquet")
