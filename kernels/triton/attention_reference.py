"""Paged attention in plain torch: what `attention.py` must compute. Any device, one by one."""

import math

import torch
from torch import Tensor

from blendrun.kernels.triton.page_index import DevicePageIndex


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    index: DevicePageIndex,
    scale: float,
    *,
    causal: bool = True,
    chunk_len: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """See `attention.paged_attention`; in float32, float64 where q is that. Cuts no context."""
    del chunk_len
    exact = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, dtype=exact, device=q.device)
    kv_len, q_begin, page_begin = (
        index.kv_len(k_cache.shape[1]),
        index.q_begin(),
        index.page_begin(),
    )
    for seq, context in enumerate(kv_len.tolist()):
        rows = slice(q_begin[seq], q_begin[seq + 1])
        pages = index.kv_indices[page_begin[seq] : page_begin[seq + 1]].long()
        k = k_cache[pages].flatten(0, 1)[:context].to(exact) * k_scale
        v = v_cache[pages].flatten(0, 1)[:context].to(exact) * v_scale
        values, lse[rows] = _attend(q[rows].to(exact), k, v, scale, causal)
        out[rows] = values.to(q.dtype)
    return out, lse


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """[n, Hq, D] and its base-2 log-sum-exp [n, Hq], of q [n, Hq, D] and k, v [context, Hkv, D]."""
    num_rows, num_heads, head_dim = q.shape
    context, num_kv_heads, _ = k.shape
    grouped = q.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("nhgd,chd->nhgc", grouped, k) * scale
    if causal:
        last_seen = torch.arange(num_rows, device=q.device) + context - num_rows
        hidden = torch.arange(context, device=q.device) > last_seen[:, None]
        scores = scores.masked_fill(hidden[:, None, None], -math.inf)
    lse = scores.logsumexp(-1)
    # a row that sees nothing: its log-sum-exp is minus infinity, and all its weights are zero
    base = lse.masked_fill(lse == -math.inf, 0.0)
    values = torch.einsum("nhgc,chd->nhgd", (scores - base[..., None]).exp(), v)
    return values.reshape(q.shape), lse.reshape(num_rows, num_heads) / math.log(2)
