"""A job in virtual time: one policy on one machine, all of its ranks, and how near to the optimum.

The batcher is the engine's. What it knows of output lengths is a choice: the truth, the mean of a
sample, or nothing but what it learns while it runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.optimum import Optimum
from blendrun.cost.step_prices import StepPrices
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.simulation import (
    PAGES,
    PREFILL,
    RUNNING,
    SECONDS,
    Machine,
    Simulated,
    VirtualRun,
)
from blendrun.errors import CapacityError, InputError
from blendrun.schedule.orders import Order, OrderSettings, order_requests
from blendrun.schedule.step.begin import BatcherJob, BatchLimits, Steering, new_state, sampled
from blendrun.schedule.step.steering import begin
from blendrun.schedule.step_job import batcher_job, fits_at_once, steering
from blendrun.tree.annotate import annotate
from blendrun.tree.bound import job_optimum
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import top_subtrees

_MAX_SEQS = 4096
Lengths = Literal["auto", "exact", "static", "survival"]


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """N requests whose output lengths the simulation knows, and the batcher may not."""

    tree: PrefixTree  # not split
    output_len: Int32  # [N] true
    max_output: Int32  # [N]
    prior: Int32  # [N] what a plan expects that knows nothing
    stated: npt.NDArray[np.bool_]  # [N] the input says how long the output will be


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What a person can choose. Defaults stand here and nowhere else."""

    policy: str = "blend"
    budget: Literal["auto", "fixed", "ratio"] = "auto"
    lengths: Lengths = "auto"  # stated ones are known, others learned
    overlaps: bool = True  # False: an engine that runs its operators one after the other
    dp: int = 1
    seed: int = 0
    page_size: int | None = None  # tokens; None: 16, and 1 for the paper's cost model
    chunk_size: int | None = None  # None: the hardware profile's limit
    max_seqs: int | None = None  # None: what `execute` takes on a CPU, 4096 elsewhere
    kv_memory: int | None = None  # bytes of one rank; None: the hardware profile's
    keep_sharing: float = 0.99
    length_factor: float = 1.0  # what the batcher believes, over the truth, with exact lengths
    price_factor: float = 1.0  # of compute seconds, likewise
    rank_speed: Mapping[int, float] = field(default_factory=dict)  # of ranks that are slower

    def __post_init__(self) -> None:
        for name in ("dp", "page_size", "chunk_size", "max_seqs", "kv_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        for rank, speed in self.rank_speed.items():
            if not 0 <= rank < self.dp or not speed > 0:
                raise InputError(
                    f"rank_speed {rank}={speed:g}: ranks are 0 to {self.dp - 1}, speeds above 0"
                )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulated run of `dp` ranks, which all start at once; some may have nothing to do."""

    options: SimulateOptions
    cost: CostModel
    budget: str  # fixed or ratio
    ranks: tuple[Simulated, ...]
    parts: tuple[Int32, ...]  # requests that each rank answered
    order: Order
    optimum: Optimum  # rank-seconds
    prompt_tokens: int
    output_tokens: int
    unique_tokens: int

    @property
    def seconds(self) -> float:
        return max(rank.seconds for rank in self.ranks)

    @property
    def num_ranks(self) -> int:
        return self.options.dp

    @property
    def ideal_frac(self) -> float:
        return self.optimum.ideal_s / self.num_ranks / self.seconds

    @property
    def practical_frac(self) -> float:
        return self.optimum.practical_s / self.num_ranks / self.seconds

    @property
    def once_practical_frac(self) -> float:
        """Likewise, of the bound for attention that reads shared prefixes once per step."""
        return self.optimum.once_practical_s / len(self.ranks) / self.seconds

    @property
    def overlaps(self) -> bool:
        """Whether the engine is one that overlaps, on hardware where that gains something."""
        return self.options.overlaps and self.cost.hardware.overlaps

    @property
    def tokens_per_s(self) -> float:
        """Input and output tokens over wall time."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were prefilled, recomputed ones too."""
        return int(sum(rank.steps[:, PREFILL].sum() for rank in self.ranks))

    @property
    def sharing_kept(self) -> float:
        """Prompt tokens not computed, over those that need not be computed; 1 without sharing."""
        possible = self.prompt_tokens - self.unique_tokens
        return (self.prompt_tokens - self.computed_tokens) / possible if possible else 1.0

    @property
    def preemptions(self) -> int:
        return int(sum(rank.state.counts["preemptions"] for rank in self.ranks))

    @property
    def recomputed_tokens(self) -> int:
        return int(sum(rank.state.counts["recomputed"] for rank in self.ranks))

    @property
    def mean_running(self) -> float:
        """Requests at once on one rank, averaged over time."""
        return self._mean(RUNNING)

    @property
    def mean_page_use_frac(self) -> float:
        return self._mean(PAGES) / float(self.ranks[0].state.limits["num_pages"])

    def _mean(self, column: int) -> float:
        steps = np.concatenate([rank.steps for rank in self.ranks])
        return float(steps[:, column] @ steps[:, SECONDS] / steps[:, SECONDS].sum())

    @property
    def num_devices(self) -> int:
        return self.cost.tp * self.num_ranks


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ordered and priced, ready to run on any number of ranks."""

    job: SimulatedJob
    cost: CostModel
    options: SimulateOptions
    order: Order
    optimum: Optimum
    output_len: Int32  # [N] as the batcher counts them
    planned: Int32  # [N] what is believed of them
    learned: npt.NDArray[np.bool_]  # [N] may be learned better
    batcher_job: BatcherJob  # of all requests
    limits: BatchLimits
    how: Steering

    def rank(
        self, part: Int32, rank: int, keep_chunks: bool = False, begin_s: float = 0.0
    ) -> VirtualRun:
        """A rank that begins with the requests `part`, in planned order."""
        options = self.options
        prices = StepPrices.of(self.cost).scaled(options.price_factor)
        job = replace(self.batcher_job, order=part)
        state = begin(new_state(job, self.limits, prices, self.how), part)
        speed = options.rank_speed.get(rank, 1.0)
        machine = Machine.of(self.cost, options.overlaps, speed)
        return VirtualRun(state, part, self.output_len, machine, keep_chunks, begin_s)

    def outcome(self, ranks: Sequence[Simulated], parts: Sequence[Int32]) -> Outcome:
        tree = self.job.tree
        return Outcome(
            self.options,
            self.cost,
            self.how.budget,
            tuple(ranks),
            tuple(parts),
            self.order,
            self.optimum,
            tree.num_prompt_tokens,
            int(self.job.output_len.sum(dtype=np.int64)),
            tree.num_unique_tokens,
        )


def prepare(job: SimulatedJob, cost: CostModel, options: SimulateOptions) -> Prepared:
    """Order `job` under one policy.

    Raises:
        CapacityError: a request does not fit into KV memory alone.
        InputError: a setting is not usable.
    """
    if options.kv_memory is not None:
        hardware = replace(cost.hardware, kv_memory_bytes=float(options.kv_memory))
        cost = replace(cost, hardware=hardware)
    check_fits(job, cost)
    output_len, max_output = _convention(job, cost)
    planned, learned = _planned(job, options, output_len)
    paper = cost.flavour == "paper"
    page_size = options.page_size or (1 if paper else 16)
    true_prices = annotate(job.tree, job.output_len, cost)
    best = job_optimum(job.tree, job.output_len, true_prices, cost, options.dp)
    order = order_requests(
        options.policy,
        job.tree,
        lambda tree: annotate(tree, planned, cost),
        OrderSettings(options.seed, options.keep_sharing, False, cost.kv_capacity_tokens),
    )
    hardware = cost.hardware
    limits = BatchLimits(
        cost.kv_capacity_tokens // page_size,
        page_size,
        options.chunk_size or hardware.chunk_limit,
        options.max_seqs or _most_seqs(hardware),
        hardware.gemm_tile,
        first_in_prefill=not paper,
    )
    sequence = np.ascontiguousarray(order.sequence)
    all_of_it = batcher_job(
        order.tree, sequence, max_output, planned, learned, cost, sequence=sequence
    )
    all_fits = fits_at_once(all_of_it, cost.kv_capacity_tokens * options.dp)
    learns = bool(learned.any())
    how = steering(order.admission, options.budget, cost, learns, options.seed, all_fits)
    return Prepared(
        job, cost, options, order, best, output_len, planned, learned, all_of_it, limits, how
    )


def _most_seqs(hardware: HardwareProfile) -> int:
    return ExecuteSettings().max_seqs if hardware.kind == "cpu" else _MAX_SEQS


def check_fits(job: SimulatedJob, cost: CostModel) -> None:
    """Raises InputError or CapacityError where there is nothing that can run."""
    tree = job.tree
    if not tree.num_requests:
        raise InputError("there are no requests to simulate", "the plan has set all rows aside")
    longest = int((tree.prompt_len + job.output_len).max(initial=0))
    if longest > cost.kv_capacity_tokens:
        raise CapacityError(
            f"the longest request has {longest} tokens, the KV memory of {cost.hardware.name} "
            f"holds {cost.kv_capacity_tokens}",
            "take more ranks (--tp) or hardware with more memory",
        )


def _convention(job: SimulatedJob, cost: CostModel) -> tuple[Int32, Int32]:
    """Output tokens as the batcher counts them: the paper's prefill step makes no token."""
    extra = 1 if cost.flavour == "paper" else 0
    return (job.output_len + extra).astype(np.int32), (job.max_output + extra).astype(np.int32)


def _planned(
    job: SimulatedJob, options: SimulateOptions, output_len: Int32
) -> tuple[Int32, npt.NDArray[np.bool_]]:
    """What the batcher believes of output lengths, and whether it may learn better."""
    n = len(output_len)
    if options.lengths in ("auto", "survival"):
        learned = ~job.stated if options.lengths == "auto" else np.ones(n, bool)
        return np.where(learned, job.prior, output_len).astype(np.int32), learned
    nothing = np.zeros(n, bool)
    if options.lengths == "exact":
        believed = np.maximum(output_len * options.length_factor, 1)
        return np.rint(believed).astype(np.int32), nothing
    stratum, _ = top_subtrees(job.tree)
    sample = sampled(np.arange(n, dtype=np.int32), stratum, options.seed)
    total = np.bincount(stratum[sample], output_len[sample])
    mean = total / np.maximum(np.bincount(stratum[sample]), 1)
    return np.rint(mean[stratum]).astype(np.int32), nothing
