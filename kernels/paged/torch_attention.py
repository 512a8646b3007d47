"""Paged attention in plain torch on any device: the last resort, and what others are held against.

One sequence at a time, in float32; shared prefixes are read once for each sharer.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from blendrun.kernels.cpu.attention_reference import causal_attention
from blendrun.kernels.cpu.rotary_reference import rotated
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes
from blendrun.kernels.paged import nhd_cache
from blendrun.kernels.paged.nhd_pages import NhdPages
from blendrun.kernels.uploads import upload


class TorchAttention(NhdPages):
    """See `engine.paged_attention.PagedAttention`."""

    backend: ClassVar[str] = "torch"

    def plan_writes(self, token_idx: Tensor, slots: Tensor) -> "TorchWrites":
        return TorchWrites(upload(token_idx.long(), self.device), upload(slots, self.device))

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
    ) -> "TorchPlan":
        del num_heads, shared, may_split, part
        pages = upload(page_table.long(), self.device)
        bounds, contexts = q_indptr.tolist(), context_len.tolist()
        page_size = k_cache.shape[1]
        return TorchPlan(
            tuple(
                (slice(bounds[s], bounds[s + 1]), pages[s, : -(-context // page_size)], context)
                for s, context in enumerate(contexts)
                if bounds[s] < bounds[s + 1]
            ),
            scale,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TorchWrites:
    """Where the K and V of a step's tokens go."""

    token_idx: Tensor  # int64 [W]
    slots: Tensor  # int64 [W]

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        q.copy_(rotated(q, rotation, rotation.q_norm))
        turned = rotated(k, rotation, rotation.k_norm)
        for cache, rows in ((k_cache, turned), (v_cache, v)):
            kept = nhd_cache.in_dtype_of(cache, rows[self.token_idx])
            nhd_cache.as_slots(cache)[self.slots] = kept


@dataclass(frozen=True, slots=True, eq=False)
class TorchPlan:
    # rows of q, int64 pages and tokens of each context
    sequences: tuple[tuple[slice, Tensor, int], ...]
    scale: float

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for rows, pages, context in self.sequences:
            k, v = (cache[pages].flatten(0, 1)[:context] for cache in (k_cache, v_cache))
            out[rows] = causal_attention(q[rows], k, v, self.scale)
        return out
