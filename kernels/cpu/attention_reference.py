"""Paged attention in plain torch: what `attention.cpp` must compute, and its stand-in.

Same signatures and cache layout as `attention.py`, any device and dtype; arithmetic is float32
(float64 for float64 caches). Knows nothing of requests or of who owns a page.
"""

import torch
from torch import Tensor

from blendrun.kernels.cpu.kv_cache import KvShape
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes


def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, token_idx: Tensor, slots: Tensor
) -> None:
    """See `attention.CpuAttention.write_kv`."""
    shape = KvShape.of(k_cache)
    page, offset = _page_and_offset(slots, shape.page_size)
    rows = token_idx.long()
    k_block, k_lane = offset // k_cache.shape[-2], offset % k_cache.shape[-2]
    v_row, v_lane = offset // v_cache.shape[-1], offset % v_cache.shape[-1]
    # Integer-array indices around a slice move to the front: [W, Hkv, D / R, R] and [W, Hkv, D].
    k_words = k[rows].reshape(rows.numel(), shape.num_kv_heads, *k_cache.shape[-3::2])
    k_cache[page, :, k_block, :, k_lane] = k_words
    v_cache[page, :, v_row, :, v_lane] = v[rows]


def read_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """See `attention.CpuAttention.read_kv`."""
    page, offset = _page_and_offset(slots, KvShape.of(k_cache).page_size)
    k_block, k_lane = offset // k_cache.shape[-2], offset % k_cache.shape[-2]
    v_row, v_lane = offset // v_cache.shape[-1], offset % v_cache.shape[-1]
    return k_cache[page, :, k_block, :, k_lane].flatten(-2), v_cache[page, :, v_row, :, v_lane]


def copy_pages(k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """See `attention.CpuAttention.copy_pages`."""
    for cache in (k_cache, v_cache):
        cache[:, dst.long()] = cache[:, src.long()]


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_indptr: Tensor,
    context_len: Tensor,
    page_table: Tensor,
    scale: float,
    out: Tensor | None = None,
    shared: SharedPrefixes | None = None,
) -> Tensor:
    """See `attention.CpuAttention.paged_attention`; reads shared prefixes once for each sharer."""
    del shared
    result = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    page_size = KvShape.of(k_cache).page_size
    bounds, contexts = q_indptr.tolist(), context_len.tolist()
    for seq, context in enumerate(contexts):
        begin, end = bounds[seq], bounds[seq + 1]
        if begin == end:
            continue
        tokens = torch.arange(context, device=q.device)
        slots = page_table[seq].long()[tokens // page_size] * page_size + tokens % page_size
        k, v = read_kv(k_cache, v_cache, slots)
        result[begin:end] = causal_attention(q[begin:end], k, v, scale)
    return result


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of q [n, Hq, D] as the last rows of k, v [context, Hkv, D]."""
    exact = torch.promote_types(q.dtype, torch.float32)
    num_rows, num_heads, head_dim = q.shape
    context, num_kv_heads, _ = k.shape
    grouped = q.to(exact).reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("nhgd,chd->hgnc", grouped, k.to(exact)) * scale
    positions = torch.arange(context, device=q.device)
    last_seen = positions[context - num_rows :, None]
    scores = scores.masked_fill(positions[None, :] > last_seen, -torch.inf)
    mixed = torch.einsum("hgnc,chd->nhgd", scores.softmax(-1), v.to(exact))
    return mixed.reshape(num_rows, num_heads, head_dim).to(q.dtype)


def _page_and_offset(slots: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    slots = slots.long()
    return slots // page_size, slots % page_size
