"""Shape of the paged K and V caches on the CPU; `kv_cache.h` is its twin in C++.

    K  [..., num_pages, num_kv_heads, page_size / B, head_dim / R, B, R]
    V  [..., num_pages, num_kv_heads, page_size / R, head_dim, R]

B = gcd(page_size, 16) tokens are scored side by side; R elements fill 32 bits (2 bfloat16, 1
float32), neighbouring dims in K and neighbouring tokens in V (R = 1 in V where page_size is odd).
Knows nothing of who owns which page.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blendrun.kernels.cpu import huge_pages

BLOCK = 16  # tokens that the C++ kernel scores together


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a cache tensor's shape says."""

    num_pages: int
    page_size: int  # tokens
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, k_cache: Tensor) -> "KvShape":
        """From a K cache, of one layer or with leading layers."""
        num_pages, num_kv_heads, num_blocks, depth, width, per_word = k_cache.shape[-6:]
        return cls(num_pages, num_blocks * width, num_kv_heads, depth * per_word)


def alloc_kv_cache(
    num_layers: int,
    num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """K and V caches with leading dims [num_layers, num_pages]; their memory is not touched.

    Raises:
        ValueError: head_dim is not a multiple of 8, or a size is not positive.
    """
    sizes = (num_layers, num_pages, page_size, num_kv_heads, head_dim)
    if min(sizes) < 1 or head_dim % 8 != 0:
        raise ValueError(f"sizes must be positive and head_dim a multiple of 8: {sizes}")
    width = math.gcd(page_size, BLOCK)
    k_word = max(1, 4 // dtype.itemsize)
    v_word = k_word if page_size % k_word == 0 else 1
    lead = (num_layers, num_pages, num_kv_heads)
    k_shape = (*lead, page_size // width, head_dim // k_word, width, k_word)
    v_shape = (*lead, page_size // v_word, head_dim, v_word)
    if torch.device(device).type == "cpu":
        return huge_pages.empty(k_shape, dtype), huge_pages.empty(v_shape, dtype)
    return (
        torch.empty(k_shape, dtype=dtype, device=device),
        torch.empty(v_shape, dtype=dtype, device=device),
    )
