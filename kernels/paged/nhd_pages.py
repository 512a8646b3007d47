"""What every attention over pages in NHD layout has alike: its device, its caches, its reason.

Caches are in the model's dtype, or all in another one, such as float8: values are rounded to it
when they are written, with scale 1, and attention computes in the model's dtype.
"""

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
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """
        Args:
            reason: why this attention was taken, in one line.
            prefix_cost_len: see `find_shared_prefixes`.
            kv_dtype: of the caches; None: that of the model.
        """
        self.device, self.prefix_cost_len = device, prefix_cost_len
        self._reason, self._kv_dtype = reason, kv_dtype
        self._dtype: torch.dtype | None = None

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
        """K and V [num_layers, num_pages, page_size, num_kv_heads, head_dim], not set.

        `dtype` is that of the model; plans that follow are for queries in it.
        """
        self._dtype = dtype
        kv_dtype = self._kv_dtype or dtype
        return nhd_cache.alloc_kv_cache(
            num_layers, num_pages, page_size, num_kv_heads, head_dim, kv_dtype, self.device
        )

    def query_dtype(self, k_cache: Tensor) -> torch.dtype:
        """Of q over these caches."""
        return k_cache.dtype if self._kv_dtype is None else self._dtype or k_cache.dtype

    def copy_pages(self, k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
        nhd_cache.copy_pages(k_cache, v_cache, src, dst)
