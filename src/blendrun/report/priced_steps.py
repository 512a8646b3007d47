"""Step records as columns, with what the cost model says of each step beside what it took."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.cost.cost_model import CostModel
from blendrun.cost.step_prices import StepPrices
from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int64


@dataclass(frozen=True, slots=True)
class Lane:
    """The steps of one rank in one attempt."""

    attempt: int  # from 0, place in the manifest
    rank: int
    steps: slice  # of the columns


@dataclass(frozen=True, slots=True)
class PricedSteps:
    """Columns over [S] steps, sorted by attempt, rank and start."""

    lanes: tuple[Lane, ...]
    start_s: Float64  # since generation of the attempt began
    step_s: Float64  # measured
    outside_s: Float64  # of it, measured outside of the model: scheduling and sampling
    work_s: Float64  # compute at the machine's best rates (g of docs/report.md)
    busy_s: Float64  # the same at the rates of a step of this size, weights read (m)
    prefill_attention_s: Float64  # of both
    read_s: Float64  # KV reads, as the backend does them (k)
    run_s: Float64  # both, as the engine runs them
    fixed_s: Float64  # fixed costs of the profile
    collective_s: Float64  # communication of tensor-parallel ranks
    prefill_tokens: Int64
    decode_tokens: Int64
    recomputed_tokens: Int64
    running: Int64
    waiting: Int64
    pages_used: Int64
    pages_idle: Int64  # of them, kept for waiting requests only
    num_pages: Int64

    @property
    def end_s(self) -> Float64:
        return self.start_s + self.step_s

    def table(self) -> pa.Table:
        """All columns, with attempt (from 1) and rank of each step."""
        sizes = [lane.steps.stop - lane.steps.start for lane in self.lanes]
        lanes = {
            "attempt": np.repeat([lane.attempt + 1 for lane in self.lanes], sizes),
            "rank": np.repeat([lane.rank for lane in self.lanes], sizes),
        }
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "lanes"}
        return pa.table(lanes | columns)


def price_steps(
    steps: pa.Table,
    cost: CostModel,
    overlaps: bool,
    ranks_are_attempts: bool = False,
    row_block: int | None = None,
) -> PricedSteps:
    """Args:
    steps: step records of a run, in any order.
    overlaps: whether the engine runs compute and KV reads at the same time.
    ranks_are_attempts: records of one attempt that number its ranks as attempts.
    row_block: rows that products are filled up to; None: they are not.
    """
    steps = _with_ranks(steps, ranks_are_attempts)
    order = [("attempt", "ascending"), ("rank", "ascending"), ("start_s", "ascending")]
    if not _is_sorted(steps):
        steps = steps.take(pc.sort_indices(steps, order))
    column = {name: steps[name].to_numpy() for name in _READ}
    tokens = column["prefill_tokens"] + column["decode_tokens"]
    heads = column["output_tokens"]
    prices, work_s = StepPrices.of(cost), column["predicted_compute_s"]
    attention_s = np.maximum(work_s - prices.token_s * tokens - prices.head_s * heads, 0.0)
    rows = tokens if row_block is None else -(-tokens // row_block) * row_block
    most = int(rows.max(initial=0))
    # by table: a step's size is a whole number, and there are few sizes
    sizes = np.arange(most + 1)
    products_s, floor_s = cost.step_products_s(sizes)[rows], cost.step_floor_s(sizes)[rows]
    heads_s = cost.step_heads_s(np.arange(int(heads.max(initial=0)) + 1))[heads]
    busy_s = cost.with_weight_floor(products_s + heads_s + attention_s, floor_s)
    read_s = column["predicted_memory_s"]
    hardware = cost.hardware
    return PricedSteps(
        lanes=tuple(_lanes(column["attempt"], column["rank"])),
        start_s=column["start_s"],
        step_s=column["step_s"],
        outside_s=column["schedule_s"] + column["sample_s"],
        work_s=work_s,
        busy_s=busy_s,
        prefill_attention_s=attention_s,
        read_s=read_s,
        run_s=cost.overlapped_s(busy_s, read_s) if overlaps else busy_s + read_s,
        fixed_s=hardware.step_overhead_s
        + hardware.token_overhead_s * tokens
        + hardware.output_overhead_s * heads,
        collective_s=cost.collective_s(sizes)[tokens],
        **{name: column[name] for name in _KEPT},
    )


_KEPT = ("prefill_tokens", "decode_tokens", "recomputed_tokens", "running", "waiting",
         "pages_used", "pages_idle", "num_pages")  # fmt: skip
_READ = ("attempt", "rank", "start_s", "step_s", "schedule_s", "sample_s", "output_tokens",
         "predicted_compute_s", "predicted_memory_s", *_KEPT)  # fmt: skip


def _with_ranks(steps: pa.Table, ranks_are_attempts: bool) -> pa.Table:
    """With a rank in each record, and what those of earlier versions lack."""
    later = (("rank", None), ("pages_idle", None), ("output_tokens", "decode_tokens"))
    for name, instead in later:
        known = steps[name] if name in steps.column_names else pa.nulls(steps.num_rows, pa.int64())
        filler = steps[instead] if instead else pa.scalar(0, pa.int64())
        filled = pc.coalesce(known, filler)
        steps = steps.drop_columns([name]) if name in steps.column_names else steps
        steps = steps.append_column(name, filled)
    if ranks_are_attempts:
        attempt = steps["attempt"]
        steps = steps.drop_columns(["attempt", "rank"])
        steps = steps.append_column("rank", pc.subtract(attempt, 1))
        steps = steps.append_column("attempt", pa.array(np.ones(steps.num_rows, np.int64)))
    return steps


def _is_sorted(steps: pa.Table) -> bool:
    attempt, rank, start = (steps[name].to_numpy() for name in ("attempt", "rank", "start_s"))
    later = np.diff(attempt) > 0
    same = np.diff(attempt) == 0
    up = np.diff(rank)
    return bool(np.all(later | (same & ((up > 0) | ((up == 0) & (np.diff(start) >= 0))))))


def _lanes(attempt: Int64, rank: Int64) -> Iterator[Lane]:
    if not len(attempt):
        return
    cuts = np.flatnonzero((np.diff(attempt) != 0) | (np.diff(rank) != 0)) + 1
    ends = [0, *cuts.tolist(), len(attempt)]
    for first, last in pairwise(ends):
        yield Lane(int(attempt[first]) - 1, int(rank[first]), slice(first, last))
