"""What every attention over pages in NHD layout has alike: its device, its caches, its reason."""

import torch
from torch import Tensor

from blendrun.kernels.cpu.shared_prefixes import COST_LEN
from blendrun.kernels.paged import nhd_cache


class NhdPages:
    """The part of `engine.paged_attention.PagedAttention` that plans nothing."""

    def __init__(
        self,
        device: torch.device,
        reason: str = "it was asked for",
        prefix_cost_len: int = COST_LEN,
    ) -> None:
        """`reason`: why this attention was taken, in one line; see `find_shared_prefixes`, too."""
        self.device, self.prefix_cost_len = device, prefix_cost_len
        self._reason = reason

    def backend_reason(self) -> str:
        return self._reason

    def alloc_kv_cache(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """K and V [num_layers, num_pages, page_size, num_kv_heads, head_dim], not set."""
        return nhd_cache.alloc_kv_cache(
            num_layers, num_pages, page_size, num_kv_heads, head_dim, dtype, self.device
        )

    def copy_pages(self, k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
        nhd_cache.copy_pages(k_cache, v_cache, src, dst)
