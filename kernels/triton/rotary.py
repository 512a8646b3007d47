"""Rotary embedding of q and k, with k and v going into their pages, in Triton.

Pairs are (i, i + D / 2), as in Hugging Face checkpoints. Knows nothing of who owns a page.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.triton.interpreted import rounded
from blendrun.kernels.triton.launch import Launch


@triton.jit(do_not_specialize=["num_tokens"])  # another number in each step
def rotate_rows(
    q,  # [T, Hq, D]
    k,  # [T, Hkv, D]
    v,
    q_norm,  # [D] or None
    k_norm,
    cos,  # float32 [T, D / 2]
    sin,
    k_cache,  # [P, PAGE_SIZE, Hkv, D]
    v_cache,
    token_idx,  # int32 [W]
    slots,  # int64 [W]
    num_tokens,
    eps,
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    kv_page_stride,
    kv_token_stride,
    kv_head_stride,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Grid: T tokens, whose q is turned, and then W slots, into which k and v go."""
    HALF: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, BLOCK_HALF)
    program = tl.program_id(0)
    if program < num_tokens:
        heads = tl.arange(0, BLOCK_Q)
        q_place = q + program.to(tl.int64) * q_row_stride
        q_place += heads[:, None] * q_head_stride + dims[None, :]
        q_valid = (heads < NUM_Q_HEADS)[:, None] & (dims < HALF)[None, :]
        q_1, q_2 = _turned(q_place, q_valid, q_norm, cos, sin, program, eps, HALF, BLOCK_HALF)
        tl.store(q_place, rounded(q_1, q.dtype.element_ty), mask=q_valid)
        tl.store(q_place + HALF, rounded(q_2, q.dtype.element_ty), mask=q_valid)
    else:
        token = tl.load(token_idx + program - num_tokens)
        slot = tl.load(slots + program - num_tokens)
        kv_heads = tl.arange(0, BLOCK_KV)
        valid = (kv_heads < NUM_KV_HEADS)[:, None] & (dims < HALF)[None, :]
        k_place = k + token.to(tl.int64) * k_row_stride
        k_place += kv_heads[:, None] * k_head_stride + dims[None, :]
        v_place = v + token.to(tl.int64) * v_row_stride
        v_place += kv_heads[:, None] * v_head_stride + dims[None, :]
        to = slot // PAGE_SIZE * kv_page_stride + slot % PAGE_SIZE * kv_token_stride
        to = to + kv_heads[:, None] * kv_head_stride + dims[None, :]
        k_1, k_2 = _turned(k_place, valid, k_norm, cos, sin, token, eps, HALF, BLOCK_HALF)
        # rounded to the dtype of k before that of the cache, as where two kernels do this
        k_1 = _kept(rounded(k_1, k.dtype.element_ty), k_cache.dtype.element_ty)
        k_2 = _kept(rounded(k_2, k.dtype.element_ty), k_cache.dtype.element_ty)
        v_1 = _kept(tl.load(v_place, mask=valid), v_cache.dtype.element_ty)
        v_2 = _kept(tl.load(v_place + HALF, mask=valid), v_cache.dtype.element_ty)
        tl.store(k_cache + to, k_1, mask=valid)
        tl.store(k_cache + to + HALF, k_2, mask=valid)
        tl.store(v_cache + to, v_1, mask=valid)
        tl.store(v_cache + to + HALF, v_2, mask=valid)


@triton.jit
def _kept(x, dtype: tl.constexpr):
    """`x` as a cache of `dtype` keeps it, see `paged.nhd_cache.in_dtype_of`."""
    if dtype == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
        x = rounded(x, dtype)
    return x


@triton.jit
def _turned(place, valid, norm, cos, sin, token, eps, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """Both halves of the heads at `place`, normed where there is a norm, and turned; float32."""
    dims = tl.arange(0, BLOCK_HALF)
    is_dim = dims < HALF
    first = tl.load(place, mask=valid, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=valid, other=0.0).to(tl.float32)
    if norm is not None:
        mean_square = tl.sum(first * first + second * second, 1) / (2 * HALF)
        scale = tl.rsqrt(mean_square + eps)[:, None]
        weight_1 = tl.load(norm + dims, mask=is_dim, other=0.0).to(tl.float32)
        weight_2 = tl.load(norm + HALF + dims, mask=is_dim, other=0.0).to(tl.float32)
        first = first * scale * weight_1[None, :]
        second = second * scale * weight_2[None, :]
    angle = token.to(tl.int64) * HALF + dims
    c = tl.load(cos + angle, mask=is_dim, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=is_dim, other=0.0)[None, :]
    return first * c - second * s, second * c + first * s


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    k_cache: Tensor,
    v_cache: Tensor,
    token_idx: Tensor,
    slots: Tensor,
) -> None:
    """Norms and turns q in place; k, normed and turned, and v go into their slots.

    Args:
        q: [T, Hq, D]; any strides but the last, which is 1.
        k, v: [T, Hkv, D] like q; they stay as they are.
        rotation: of the T tokens.
        k_cache, v_cache: [P, page_size, Hkv, D] in the dtype of q or float8_e4m3fn, with equal
            strides, the last 1.
        token_idx: int32 [W], rows of k and v; a token may go to several slots.
        slots: int64 [W], page * page_size + offset, all different.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    rotary_launch(q, k, v, rotation, k_cache, v_cache, token_idx, slots).run()


def rotary_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    k_cache: Tensor,
    v_cache: Tensor,
    token_idx: Tensor,
    slots: Tensor,
) -> Launch:
    """See `rotate_and_write`."""
    _check(q, k, v, rotation, k_cache, v_cache)
    if token_idx.dtype != torch.int32 or slots.dtype != torch.int64:
        raise ValueError("token_idx must be int32 and slots int64")
    num_tokens, num_q_heads, head_dim = q.shape
    _, page_size, num_kv_heads, _ = k_cache.shape
    args = {
        **{"q": q, "k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache},
        **{"q_norm": rotation.q_norm, "k_norm": rotation.k_norm, "eps": rotation.eps},
        **{"cos": rotation.cos, "sin": rotation.sin},
        **{"token_idx": token_idx, "slots": slots, "num_tokens": num_tokens},
        **{f"{n}_row_stride": t.stride(0) for n, t in (("q", q), ("k", k), ("v", v))},
        **{f"{n}_head_stride": t.stride(1) for n, t in (("q", q), ("k", k), ("v", v))},
        "kv_page_stride": k_cache.stride(0),
        "kv_token_stride": k_cache.stride(1),
        "kv_head_stride": k_cache.stride(2),
        "NUM_Q_HEADS": num_q_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": page_size,
        "BLOCK_Q": triton.next_power_of_2(num_q_heads),
        "BLOCK_KV": triton.next_power_of_2(num_kv_heads),
        "BLOCK_HALF": triton.next_power_of_2(head_dim // 2),
    }
    values = args["BLOCK_Q"] * args["BLOCK_HALF"]
    num_warps = min(max(values // 1024, 1), 8)
    return Launch(rotate_rows, (num_tokens + slots.numel(),), args, num_warps)


def _check(
    q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor
) -> None:
    dtype, (_, _, num_kv_heads, head_dim) = q.dtype, k_cache.shape
    rows = (q.shape[0], num_kv_heads, head_dim)
    if k.shape != rows or v.shape != rows or q.dim() != 3 or q.shape[2] != head_dim:
        raise ValueError(f"q, k and v must be [T, heads, {head_dim}], k and v {list(rows)}")
    caches = (dtype, torch.float8_e4m3fn)
    fits = k.dtype == v.dtype == dtype and k_cache.dtype in caches
    if not fits or any(t.stride(-1) != 1 for t in (q, k, v, k_cache, v_cache)):
        raise ValueError(f"k and v must be {dtype}, the caches too or float8, last dims contiguous")
    alike = k_cache.dtype == v_cache.dtype and k_cache.shape == v_cache.shape
    if not alike or k_cache.stride() != v_cache.stride():
        raise ValueError("the caches must be alike")
    angles = (rotation.cos, rotation.sin)
    are_angles = (t.dtype == torch.float32 and t.is_contiguous() for t in angles)
    if not all(are_angles) or any(t.shape != (q.shape[0], head_dim // 2) for t in angles):
        raise ValueError(f"cos and sin must be float32 [{q.shape[0]}, {head_dim // 2}]")
    norms = [norm for norm in (rotation.q_norm, rotation.k_norm) if norm is not None]
    if any(norm.shape != (head_dim,) or norm.dtype != q.dtype for norm in norms):
        raise ValueError(f"the norms must be {q.dtype} [{head_dim}]")
