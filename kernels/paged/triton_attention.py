"""Paged attention through our Triton kernels, planned once per step and run once per layer.

A step is one launch, and shared prefixes are one for each level, whose results are merged.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes
from blendrun.kernels.paged.nhd_pages import NhdPages
from blendrun.kernels.paged.page_index import PageIndex
from blendrun.kernels.paged.step_split import Int64, StepSplit, as_rows
from blendrun.kernels.triton.attention import AttentionPlan, plan_attention
from blendrun.kernels.triton.attention_tiles import chunk_len_for
from blendrun.kernels.triton.merge_states import merge_states
from blendrun.kernels.triton.page_index import DevicePageIndex
from blendrun.kernels.triton.rms_norm import add_rms_norm
from blendrun.kernels.triton.rotary import rotate_and_write
from blendrun.kernels.triton.silu_mul import silu_mul
from blendrun.kernels.uploads import upload

_PROGRAMS_PER_PROCESSOR = 4  # below which long contexts are cut


class TritonAttention(NhdPages):
    """See `engine.paged_attention.PagedAttention`."""

    backend: ClassVar[str] = "triton"

    def plan_writes(self, token_idx: Tensor, slots: Tensor) -> "TritonWrites":
        return TritonWrites(upload(token_idx, self.device), upload(slots, self.device))

    def plan(
        self,
        k_cache: Tensor,
        num_heads: int,
        q_indptr: Tensor,
        context_len: Tensor,
        page_table: Tensor,
        scale: float,
        shared: SharedPrefixes | None = None,
        *,
        may_split: bool = True,
        part: int = 0,
    ) -> "TritonPlan":
        """As `CpuAttention.plan`; index tensors are on the CPU. `part` has no effect."""
        del part
        columns = (q_indptr.numpy(), context_len.numpy(), page_table.numpy())
        split = StepSplit.of(*columns, k_cache.shape[1], shared)
        single = ((split.decodes, split.decode_rows), (split.prefills, split.prefill_rows))
        parts: list[tuple[tuple[PageIndex, ...], Int64]] = [
            ((index,), rows) for index, rows in single if index is not None
        ]
        if split.cascade is not None:
            parts.append((split.cascade.levels, split.cascade_rows))

        def of_rows(levels: tuple[PageIndex, ...], rows: Int64) -> _Part:
            plans = self._levels(levels, k_cache, num_heads, may_split)
            return _Part(as_rows(rows, self.device), plans)

        return TritonPlan(tuple(of_rows(levels, rows) for levels, rows in parts), scale)

    def _levels(
        self, levels: tuple[PageIndex, ...], k_cache: Tensor, num_heads: int, may_split: bool
    ) -> tuple[AttentionPlan, ...]:
        """Rows see all of a prefix, and of the last level what is not behind them."""
        _, page_size, num_kv_heads, head_dim = k_cache.shape
        q_shape, dtype = (levels[0].num_rows, num_heads, head_dim), self.query_dtype(k_cache)
        like_q = k_cache.new_empty(q_shape, dtype=dtype)
        plans = []
        for number, level in enumerate(levels):
            qo_indptr, kv_indptr, indices, last = map(
                torch.from_numpy,
                (level.qo_indptr, level.kv_indptr, level.kv_indices, level.kv_last_page_len),
            )
            index = DevicePageIndex(qo_indptr, kv_indptr, upload(indices, self.device), last)
            chunk_len = None
            if may_split and self.device.type == "cuda":
                processors = torch.cuda.get_device_properties(self.device).multi_processor_count
                programs = _PROGRAMS_PER_PROCESSOR * processors // num_kv_heads
                chunk_len = chunk_len_for(index, page_size, num_heads // num_kv_heads, programs)
            is_last = number == len(levels) - 1
            plans.append(
                plan_attention(like_q, k_cache, index, causal=is_last, chunk_len=chunk_len)
            )
        return tuple(plans)


@dataclass(frozen=True, slots=True, eq=False)
class TritonWrites:
    """Where the K and V of a step's tokens go."""

    token_idx: Tensor  # int32 [W]
    slots: Tensor  # int64 [W]

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        rotate_and_write(q, k, v, rotation, k_cache, v_cache, self.token_idx, self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    rows: slice | Tensor  # of q
    levels: tuple[AttentionPlan, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TritonPlan:
    parts: tuple[_Part, ...]  # together they write all rows
    scale: float

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in self.parts:
            rows = q[part.rows]
            if len(part.levels) == 1 and isinstance(part.rows, slice):
                part.levels[0].run(rows, k_cache, v_cache, self.scale, out[part.rows])
                continue
            values = rows.new_empty(len(part.levels), *rows.shape)
            lse = torch.empty(values.shape[:3], dtype=torch.float32, device=q.device)
            for level, of_level, lse_of in zip(part.levels, values, lse, strict=True):
                level.run(rows, k_cache, v_cache, self.scale, of_level, lse_of)
            if len(part.levels) == 1:
                out[part.rows] = values[0]
            else:
                merged = merge_states(
                    values.transpose(0, 1).contiguous(), lse.transpose(0, 1).contiguous()
                )
                out[part.rows] = merged[0]
        return out


@dataclass(frozen=True, slots=True)
class TritonElementwise:
    """See `engine.elementwise.Elementwise`."""

    def add_rms_norm(
        self, hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> Tensor:
        return add_rms_norm(hidden, branch, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)
