"""Make a plan: read and tokenize, build the tree, price it, order it, write it down.

Needs a model's config and tokenizer, never its weights, and never torch.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.config import Resolved
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.data.ingest import ingest
from blendrun.errors import CapacityError
from blendrun.schedule import plan_file
from blendrun.schedule.lengths import expected_lengths
from blendrun.schedule.orders import Order, OrderSettings, order_requests
from blendrun.schedule.plan_file import Plan
from blendrun.schedule.plan_model import load_model
from blendrun.schedule.priced_job import PricedJob
from blendrun.schedule.settings import PlanSettings
from blendrun.schedule.summary import describe
from blendrun.tree.annotate import Annotations
from blendrun.tree.build import build_tree
from blendrun.tree.store import write_tree


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int) -> None: ...


def make_plan(
    prompts: Sequence[str], settings: Resolved[PlanSettings], path: Path, progress: Progress
) -> Plan:
    """Plan the requests of `prompts` and write `path` and its sidecars.

    Raises:
        InputError: files, columns, model or settings that cannot be used.
        CapacityError: the model leaves no memory for KV on the planned hardware.
    """
    wanted = settings.value
    model = load_model(wanted)
    cost = CostModel(model.shape, HardwareProfile.load(wanted.hardware), wanted.tp, wanted.cost)
    if cost.kv_capacity_tokens < 1:
        raise CapacityError(
            f"{model.shape.name} leaves no memory for KV pages on {cost.hardware.name}",
            "take a smaller model, more ranks (--tp) or hardware with more memory",
        )
    folder = plan_file.sidecar_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = ingest(
        prompts,
        wanted.columns,
        model.tokenizer,
        wanted.sampling,
        model.shape.max_position,
        model.shape.vocab_size,
        folder,
        wanted.limit,
        lambda done, total: progress("read and tokenize", done, total),
    )
    progress("build prefix tree", 0, 1)
    tree = build_tree(rows.store.tokens, rows.store.offsets)
    lengths, origin = expected_lengths(rows.requests, wanted.prior_output_len)
    job = PricedJob(rows, tree, lengths, origin, cost, wanted.dp)
    progress("order", 0, 1)
    order = order_requests(
        wanted.policy,
        tree,
        job.annotate,
        OrderSettings(wanted.seed, wanted.keep_sharing, job.everything_fits),
    )
    priced = job.annotate(order.tree)
    _write_sidecars(folder, job, order, priced)
    plan = describe(job, order, model, settings)
    plan_file.write_plan(path, plan, rows.sources)
    return plan


def _write_sidecars(folder: Path, job: PricedJob, order: Order, priced: Annotations) -> None:
    write_tree(folder / plan_file.TREE_FILE, order.tree, priced)
    pq.write_table(job.rows.rejected, folder / plan_file.REJECTED_FILE, compression="zstd")
    density = priced.request_density
    table = job.rows.requests.append_column(
        "request", pa.array(np.arange(order.tree.num_requests, dtype=np.int32))
    )
    table = table.append_column("expected_output_len", pa.array(job.output_len))
    table = table.append_column("length_from", pa.array(job.length_from.tolist(), pa.string()))
    table = table.append_column("density", pa.array(density))
    # the lists of an online batcher: left at or above the root's density, right the rest
    table = table.append_column("is_left", pa.array(density >= priced.root_density))
    table = table.take(pa.array(order.sequence))
    pq.write_table(table, folder / plan_file.REQUESTS_FILE, compression="zstd")
