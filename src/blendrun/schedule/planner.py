"""Make a plan: read and tokenize, build the tree, price it, order it, write it down.

Needs a model's config and tokenizer, never its weights, and never torch.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from blendrun.config import Resolved
from blendrun.cost.cost_model import CostModel, Flavour
from blendrun.cost.hardware import HardwareProfile
from blendrun.data.ingest import Ingested, Ingester
from blendrun.data.row_work import REQUEST_SCHEMA
from blendrun.data.token_store import OFFSETS_FILE, TOKENS_FILE, TokenStore
from blendrun.errors import CapacityError
from blendrun.schedule import plan_file
from blendrun.schedule.earlier_run import Observed, observe
from blendrun.schedule.lengths import expected_lengths
from blendrun.schedule.orders import Order, OrderSettings, order_requests
from blendrun.schedule.partition import Part, partition
from blendrun.schedule.plan_file import read_plan
from blendrun.schedule.plan_model import PlannedModel, load_model
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.priced_job import PricedJob
from blendrun.schedule.rank_choice import RankChoice, RanksWanted
from blendrun.schedule.settings import AUTO, PlanSettings
from blendrun.schedule.summary import describe, joined
from blendrun.tree.build import build_tree
from blendrun.tree.prefix_tree import PrefixTree
from blendrun.tree.store import write_tree


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int) -> None: ...


def make_plan(
    prompts: Sequence[str],
    settings: Resolved[PlanSettings],
    path: Path,
    progress: Progress,
    accept: Callable[[Plan, Sequence[Path]], None] | None = None,
) -> Plan:
    """Plan the requests of `prompts` and write `path` and its sidecars.

    A plan that lies at `path` already is replaced when the new one is complete, not before.

    Args:
        accept: takes the plan and the folders of its sidecars, one for each window; what it raises
            refuses the plan, and the old one stays.

    Raises:
        InputError: files, columns, model or settings that cannot be used.
        CapacityError: the model leaves no memory for KV on the planned hardware.
    """
    model = load_model(settings.value)
    planner = _Planner.of(settings, model, progress)
    with plan_file.new_sidecars(path) as folder, planner.ingester(prompts) as ingester:
        if settings.value.window is None:
            rows = ingester.take(folder)
            sources = ingester.sources()
            plan = planner.plan_rows(rows, folder)
        else:
            plan = planner.plan_windows(ingester, path, folder, settings.value.window)
            sources = ingester.sources()
        if accept is not None:
            windows = [folder / Path(name).name for name in plan.windows]
            accept(plan, [plan_file.sidecar_folder(window) for window in windows] or [folder])
    plan_file.write_plan(path, plan, sources)
    return plan


def plan_again(path: Path, settings: Resolved[PlanSettings], progress: Progress) -> Plan:
    """Plan the requests of the plan at `path` anew, with other settings that no answer depends on.

    Reads no inputs: the rows and their tokens are kept. The new plan takes the place of the old.

    Raises:
        PlanError: the plan cannot be read, or has windows.
    """
    stored = read_plan(path)
    model = load_model(settings.value)
    planner = _Planner.of(settings, model, progress)
    with plan_file.new_sidecars(path) as folder:
        old = plan_file.sidecar_folder(path)
        for name in (TOKENS_FILE, OFFSETS_FILE):
            _link(old / name, folder / name)
        table = stored.requests.take(np.argsort(stored.requests["request"].to_numpy()))
        requests = table.select(REQUEST_SCHEMA.names).replace_schema_metadata()
        rows = Ingested(
            stored.plan.counts.rows,
            requests,
            stored.rejected,
            TokenStore.open(folder),
            stored.plan.input_notes,
        )
        plan = planner.plan_rows(rows, folder)
    plan_file.write_plan(path, plan, stored.sources)
    return plan


def _link(old: Path, new: Path) -> None:
    """One file under two names where the file system can, else a copy."""
    try:
        new.hardlink_to(old)
    except OSError:
        shutil.copyfile(old, new)


def _cost_model(model: PlannedModel, hardware: HardwareProfile, tp: int, how: Flavour) -> CostModel:
    cost = CostModel.of_group(model.shape, hardware, tp, how)
    if cost.kv_capacity_tokens < 1:
        raise CapacityError(
            f"{model.shape.name} leaves no memory for KV pages on {hardware.name}",
            "take a smaller model, more ranks (--tp) or hardware with more memory",
        )
    return cost


@dataclass(slots=True)
class _Planner:
    settings: Resolved[PlanSettings]
    model: PlannedModel
    hardware: HardwareProfile
    progress: Progress
    choice: RankChoice | None = None  # the first window's holds for all

    @classmethod
    def of(
        cls, settings: Resolved[PlanSettings], model: PlannedModel, progress: Progress
    ) -> "_Planner":
        wanted = settings.value
        hardware = HardwareProfile.load(wanted.hardware)
        if wanted.tp != AUTO:  # refused before the prompts are read
            _cost_model(model, hardware, wanted.tp, wanted.cost)
        return cls(settings, model, hardware, progress)

    def ingester(self, prompts: Sequence[str]) -> Ingester:
        settings, shape = self.settings.value, self.model.shape
        return Ingester(
            prompts,
            settings.columns,
            self.model.tokenizer,
            settings.sampling,
            shape.max_position,
            shape.vocab_size,
            options=settings.input_options,
            limit=settings.limit,
            num_workers=settings.workers,
            progress=lambda done, total: self.progress("read and tokenize", done, total),
        )

    def plan_windows(self, ingester: Ingester, path: Path, folder: Path, num_rows: int) -> Plan:
        """A plan of each `num_rows` rows, one after the other, and their sum."""
        plans: list[Plan] = []
        names: list[str] = []
        while not plans or not ingester.at_end():
            part = folder / f"{len(plans):04d}.json"
            sidecars = plan_file.sidecar_folder(part)
            sidecars.mkdir()
            rows = ingester.take(sidecars, num_rows)
            plans.append(self.plan_rows(rows, sidecars, len(plans)))
            plan_file.write_plan(part, plans[-1], ())
            names.append(f"{plan_file.sidecar_folder(path).name}/{part.name}")
        return joined(plans, names)

    def plan_rows(self, rows: Ingested, folder: Path, window: int | None = None) -> Plan:
        """The plan of some rows; its sidecars are written to `folder`."""
        settings = self.settings.value
        self.progress("build prefix tree", 0, 1)
        tree = build_tree(rows.store.tokens, rows.store.offsets)
        observed = self._observed(tree, rows)
        lengths = expected_lengths(rows.requests, settings.prior_output_len, tree, observed)
        if self.choice is None:
            wanted_ranks = RanksWanted(settings.tp, settings.dp, settings.devices)
            self.choice = wanted_ranks.choose(
                rows, tree, lengths, self.model.shape, self.hardware, settings.cost
            )
        ranks = self.choice
        cost = _cost_model(self.model, self.hardware, ranks.tp, settings.cost)
        job = PricedJob(rows, tree, lengths, cost, ranks.dp)
        self.progress("order", 0, 1)
        wanted = OrderSettings(
            settings.seed, settings.keep_sharing, job.everything_fits, job.kv_capacity_tokens
        )
        order = order_requests(settings.policy, job.tree, job.annotate, wanted)
        parts: list[Part] = []
        if ranks.dp > 1:
            self.progress("divide among ranks", 0, 1)
            parts = partition(
                order.tree,
                order.sequence,
                lengths.tokens,
                cost,
                ranks.dp,
                lengths.is_guess(rows.requests),
            )
        plan = describe(job, order, self.model, self.settings, parts, window, ranks.reason)
        seen = observed.examples(tree, settings.seed)
        _write_sidecars(folder, job, order, plan, parts, seen)
        return plan

    def _observed(self, tree: PrefixTree, rows: Ingested) -> Observed:
        """What earlier runs tell of the output lengths."""
        runs = self.settings.value.lengths_from if tree.num_requests else ()
        if runs:
            self.progress("lengths of earlier runs", 0, 1)
        return Observed.joined([observe(Path(run), tree, rows.store) for run in runs])


def _write_sidecars(
    folder: Path, job: PricedJob, order: Order, plan: Plan, parts: Sequence[Part], seen: pa.Table
) -> None:
    priced = job.annotate(order.tree)
    density = priced.request_density
    rank = np.zeros(order.tree.num_requests, np.int32)
    for number, part in enumerate(parts):
        rank[part.requests] = number
    columns = {
        "request": np.arange(order.tree.num_requests, dtype=np.int32),
        "expected_output_len": job.output_len,
        "length_from": job.lengths.origin_names(),
        "density": density,
        # on the left wait, if lengths are as expected, those at the root's density or above
        "is_left": density >= priced.root_density,
        "rank": rank,
    }
    requests = job.rows.requests
    for name, values in columns.items():
        requests = requests.append_column(name, pa.array(values))
    plan_file.write_sidecars(folder, plan, requests, order.sequence, job.rows.rejected, seen)
    write_tree(folder / plan_file.TREE_FILE, order.tree, priced)
