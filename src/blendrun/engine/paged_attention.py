"""What a step needs of an attention: KV pages, where to write, what to read; on whatever device.

`kernels.cpu` has one for CPUs, `kernels.flashinfer` and `kernels.paged` have those for GPUs. The
layout of a cache is its own attention's business.
"""

from typing import Protocol

import torch
from torch import Tensor

from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes


class StepWrites(Protocol):
    """Where K and V of a step's tokens go, the same for all layers."""

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        """Norm and turn q [T, Hq, D] in place; write k, normed and turned, and v, [T, Hkv, D].

        k may be changed. The caches are those of one layer.
        """


class StepReads(Protocol):
    """A step's attention, planned once and run by every layer."""

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """[T, Hq, D] of q [T, Hq, D] over one layer, in which all that it reads is written."""


class PagedAttention(Protocol):
    @property
    def backend(self) -> str:
        """Which implementation runs."""

    @property
    def prefix_cost_len(self) -> int:
        """What sharing a prefix costs, see `find_shared_prefixes`."""

    def backend_reason(self) -> str:
        """Why, in one line."""

    def alloc_kv_cache(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """K and V caches, leading dims [num_layers, num_pages]; what they hold is not set."""

    def copy_pages(self, k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
        """Copies page src[i] onto page dst[i] in all layers; int32 [C] on the CPU."""

    def plan_writes(self, token_idx: Tensor, slots: Tensor) -> StepWrites:
        """Token token_idx[w] goes into slots[w]; int32 and int64 [W] on the CPU."""

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
    ) -> StepReads:
        """As `CpuAttention.plan`; all index tensors are on the CPU.

        Plans of different `part`s can be run at the same time; of one part, only the latest.
        """
