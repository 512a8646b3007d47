"""Paged K and V caches in the layout NHD, in which device kernels read them.

    K, V  [num_layers, num_pages, page_size, num_kv_heads, head_dim]

Token t of a page table row is entry t % page_size of page row[t // page_size]. Knows nothing of
who owns which page.
"""

import torch
from torch import Tensor

from blendrun.kernels.uploads import upload


def alloc_kv_cache(
    num_layers: int,
    num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """K and V caches of all layers; what they hold is not set.

    Raises:
        ValueError: a size is not positive.
    """
    shape = (num_layers, num_pages, page_size, num_kv_heads, head_dim)
    if min(shape) < 1:
        raise ValueError(f"sizes must be positive: {shape}")
    return (
        torch.empty(shape, dtype=dtype, device=device),
        torch.empty(shape, dtype=dtype, device=device),
    )


def copy_pages(k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies page src[i] onto page dst[i] in all layers; int32 [C] on the CPU, no page in both.

    Raises:
        ValueError: a page is in both.
    """
    if torch.isin(src, dst).any():
        raise ValueError("copy_pages: a page is both source and destination")
    source, target = (upload(pages.long(), k_cache.device) for pages in (src, dst))
    for cache in (k_cache, v_cache):
        cache[:, target] = cache[:, source]


def in_dtype_of(cache: Tensor, x: Tensor) -> Tensor:
    """`x` as `cache` keeps it; float8 has no infinity: beyond its range is its largest number."""
    if x.dtype == cache.dtype:
        return x
    most = torch.finfo(cache.dtype).max
    return x.clamp(-most, most).to(cache.dtype)


def as_slots(cache: Tensor) -> Tensor:
    """One layer [num_pages, page_size, Hkv, D] as slots [num_pages * page_size, Hkv, D]; a view."""
    return cache.flatten(0, 1)
