"""Make a plan: read and tokenize, build the tree, price it, order it, write it down.

Needs a model's config and tokenizer, never its weights, and never torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from blendrun.config import Resolved
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.data.ingest import Ingested, Ingester
from blendrun.data.sources import SourceFile
from blendrun.errors import CapacityError, PlanError
from blendrun.schedule import plan_file
from blendrun.schedule.lengths import expected_lengths
from blendrun.schedule.orders import Order, OrderSettings, order_requests
from blendrun.schedule.plan_file import Plan
from blendrun.schedule.plan_model import PlannedModel, load_model
from blendrun.schedule.priced_job import PricedJob
from blendrun.schedule.settings import PlanSettings
from blendrun.schedule.summary import describe
from blendrun.tree.build import build_tree
from blendrun.tree.store import write_tree


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int) -> None: ...


def make_plan(
    prompts: Sequence[str],
    settings: Resolved[PlanSettings],
    path: Path,
    progress: Progress,
    only_job: str | None = None,
) -> Plan:
    """Plan the requests of `prompts` and write `path` and its sidecars.

    A plan that lies at `path` already is replaced when the new one is complete, not before.

    Args:
        only_job: refuse a plan of another job than this `job_id`.

    Raises:
        InputError: files, columns, model or settings that cannot be used.
        PlanError: the job is not `only_job`.
        CapacityError: the model leaves no memory for KV on the planned hardware.
    """
    model = load_model(settings.value)
    cost = _cost_model(model, settings.value)
    with plan_file.new_sidecars(path) as folder:
        rows, sources = _read(prompts, settings.value, model, folder, progress)
        job = _build(rows, settings.value, cost, progress)
        progress("order", 0, 1)
        wanted = OrderSettings(
            settings.value.seed,
            settings.value.keep_sharing,
            job.everything_fits,
            job.kv_capacity_tokens,
        )
        order = order_requests(settings.value.policy, job.tree, job.annotate, wanted)
        plan = describe(job, order, model, settings)
        if only_job is not None and plan.job_id != only_job:
            raise PlanError(
                f"{path.parent} holds the run of another job",
                "other prompts, model or sampling need another folder",
            )
        _write_sidecars(folder, job, order, plan)
    plan_file.write_plan(path, plan, sources)
    return plan


def _cost_model(model: PlannedModel, settings: PlanSettings) -> CostModel:
    hardware = HardwareProfile.load(settings.hardware)
    cost = CostModel(model.shape, hardware, settings.tp, settings.cost)
    if cost.kv_capacity_tokens < 1:
        raise CapacityError(
            f"{model.shape.name} leaves no memory for KV pages on {hardware.name}",
            "take a smaller model, more ranks (--tp) or hardware with more memory",
        )
    return cost


def _read(
    prompts: Sequence[str],
    settings: PlanSettings,
    model: PlannedModel,
    folder: Path,
    progress: Progress,
) -> tuple[Ingested, tuple[SourceFile, ...]]:
    """The rows of all inputs, with their tokens in `folder`."""
    with Ingester(
        prompts,
        settings.columns,
        model.tokenizer,
        settings.sampling,
        model.shape.max_position,
        model.shape.vocab_size,
        limit=settings.limit,
        num_workers=settings.workers,
        progress=lambda done, total: progress("read and tokenize", done, total),
    ) as ingester:
        return ingester.take(folder), ingester.sources()


def _build(
    rows: Ingested, settings: PlanSettings, cost: CostModel, progress: Progress
) -> PricedJob:
    """The rows with their prefix tree, expected lengths and prices."""
    progress("build prefix tree", 0, 1)
    tree = build_tree(rows.store.tokens, rows.store.offsets)
    lengths, length_from = expected_lengths(rows.requests, settings.prior_output_len)
    return PricedJob(rows, tree, lengths, length_from, cost, settings.dp)


def _write_sidecars(folder: Path, job: PricedJob, order: Order, plan: Plan) -> None:
    priced = job.annotate(order.tree)
    density = priced.request_density
    columns = {
        "request": np.arange(order.tree.num_requests, dtype=np.int32),
        "expected_output_len": job.output_len,
        "length_from": pa.array(job.length_from.tolist(), pa.string()),
        "density": density,
        # on the left wait, if lengths are as expected, those at the root's density or above
        "is_left": density >= priced.root_density,
    }
    requests = job.rows.requests
    for name, values in columns.items():
        requests = requests.append_column(name, pa.array(values))
    plan_file.write_sidecars(
        folder, plan, requests.take(pa.array(order.sequence)), job.rows.rejected
    )
    write_tree(folder / plan_file.TREE_FILE, order.tree, priced)
