"""Small batchers, driven without a model: outputs end after a given number of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numba
import numpy as np

from blendrun.cost.step_prices import StepPrices
from blendrun.schedule.batch import Batch
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.begin import BatcherJob, BatchLimits, Steering
from blendrun.tree.prefix_tree import PrefixTree
from tiny_jobs import tree_of

# a machine on which a step of 20 tokens takes as long as reading the weights
PRICES = StepPrices(
    token_s=1e-3, pair_s=1e-7, head_s=1e-4, decode_s=1.1e-3, context_s=1e-5, weight_s=2e-2
)
# on the left: little output for much prompt
DENSE, SPARSE = 3.0, 0.2


def batcher_job(
    tree: PrefixTree,
    output_len: Sequence[int],
    *,
    believed: Sequence[int] | None = None,
    max_output: Sequence[int] | None = None,
    learned: bool = False,
    density: Sequence[float] | None = None,
    generated: Sequence[int] | None = None,
) -> BatcherJob:
    n = tree.num_requests
    planned = np.array(output_len if believed is None else believed, np.float64)
    own_len = tree.edge_len[tree.leaf_node]
    return BatcherJob(
        tree=tree,
        order=tree.leaf_order.astype(np.int32),
        max_output=np.array(output_len if max_output is None else max_output, np.int32),
        planned_output=planned,
        learned=np.full(n, learned),
        compute_s=np.linspace(DENSE, SPARSE, n) if density is None else np.array(density),
        memory_s=np.ones(n),
        prefill_s=PRICES.token_s * tree.prompt_len
        + PRICES.pair_s * tree.prompt_len.astype(float) ** 2,
        footprint=own_len + planned / 2,
        root_density=1.0,
        generated=None if generated is None else np.array(generated, np.int32),
    )


@dataclass
class TinyRun:
    """A batcher over `prompts`; `step` runs one step of it."""

    prompts: Sequence[Sequence[int]]
    output_len: Sequence[int]
    num_pages: int = 1000
    page_size: int = 4
    chunk_size: int = 8
    max_seqs: int = 4
    admission: str = "one list"
    budget: str = "fixed"
    believed: Sequence[int] | None = None
    max_output: Sequence[int] | None = None
    learns: bool = False
    share: bool = True
    whole_pages: bool = False  # that alone are shared
    tile: int = 1
    spared_s: float = 0.0  # above 0: a step reads a shared prefix once for all
    begun: Sequence[int] | None = None  # tokens that are there before the run, by request
    generated: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # times, by request

    def __post_init__(self) -> None:
        n = len(self.prompts)
        self.generated, self.preempted = list(self.begun or [0] * n), [0] * n
        self.tree = tree_of(self.prompts)
        if self.whole_pages:
            self.tree = self.tree.in_whole_pages(self.page_size)
        job = batcher_job(
            self.tree,
            self.output_len,
            believed=self.believed,
            max_output=self.max_output,
            learned=self.learns,
            generated=self.begun,
        )
        limits = BatchLimits(
            self.num_pages, self.page_size, self.chunk_size, self.max_seqs, self.tile
        )
        how = Steering(self.admission, self.budget, self.learns)
        prices = replace(PRICES, spared_s=self.spared_s)
        self.batcher = Batcher(job, limits, prices, how, self.share)

    def step(self) -> Batch | None:
        before = self.batcher.state.slots["request"].copy()
        batch = self.batcher.next_batch()
        if batch is None:
            return None
        self.spared_tokens = self.batcher.spared_tokens
        for slot in batch.freed.slots:
            self.preempted[before[slot]] += 1
        finished = np.zeros(len(batch.slot), np.bool_)
        for i in np.flatnonzero(batch.needs_logits):
            request = int(batch.request[i])
            self.generated[request] += 1
            finished[i] = self.generated[request] == self.output_len[request]
        self.committed = self.batcher.commit(batch, finished)
        return batch

    def finish(self, most_steps: int = 20_000) -> list[Batch]:
        batches = []
        while (batch := self.step()) is not None:
            batches.append(batch)
            assert len(batches) < most_steps, "the job does not end"
        return batches


def from_python(part: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled part, made callable from a test."""

    @numba.njit
    def call(*args):
        return part(*args)

    return call


def distinct(lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of these lengths that share nothing."""
    return [[1000 + i] * n for i, n in enumerate(lengths)]
