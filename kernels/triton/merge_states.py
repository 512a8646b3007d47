"""Attention states of parts of a context joined by log-sum-exp, in Triton.

Parts are chunks of one context (split-KV) or levels of shared prefixes (cascade).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blendrun.kernels.triton.interpreted import rounded
from blendrun.kernels.triton.launch import Launch

_BLOCK = 2048  # values of a program


@triton.jit
def merge_rows(
    values,  # [N, Hq, D]
    state_lse,  # float32 [N, Hq]
    indptr,  # int32 [R + 1]
    rows,  # int32 [R] or None
    out,
    lse,  # or None
    out_row_stride,
    out_head_stride,
    lse_row_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid: R, blocks of heads."""
    row = tl.program_id(0)
    first = tl.load(indptr + row).to(tl.int64)
    last = tl.load(indptr + row + 1).to(tl.int64)
    to_row = row
    if rows is not None:
        to_row = tl.load(rows + row)
    to_row = to_row.to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    is_head = heads < NUM_HEADS
    is_value = is_head[:, None] & (dims < HEAD_DIM)[None, :]
    highest = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    merged = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for state in range(first, last):
        place = state * NUM_HEADS + heads
        part_lse = tl.load(state_lse + place, mask=is_head, other=float("-inf"))
        part = tl.load(values + place[:, None] * HEAD_DIM + dims[None, :], mask=is_value, other=0.0)
        new_highest = tl.maximum(highest, part_lse)
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weight = tl.exp2(part_lse - base)
        shrink = tl.exp2(highest - base)
        total = total * shrink + weight
        merged = merged * shrink[:, None] + part.to(tl.float32) * weight[:, None]
        highest = new_highest
    divisor = tl.where(total > 0, total, 1.0)
    place = to_row * out_row_stride + heads * out_head_stride
    result = rounded(merged / divisor[:, None], out.dtype.element_ty)
    tl.store(out + place[:, None] + dims[None, :], result, mask=is_value)
    if lse is not None:
        merged_lse = tl.where(total > 0, highest + tl.log2(divisor), float("-inf"))
        tl.store(lse + to_row * lse_row_stride + heads, merged_lse, mask=is_head)


def merge_states(values: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over several parts of a context, from attention over each of them.

    Args:
        values: [T, L, Hq, D], contiguous; of L parts. As FlashInfer's `merge_states`.
        lse: float32 [T, L, Hq], contiguous; log-sum-exp to base 2. Parts with minus infinity
            do not count.

    Returns:
        [T, Hq, D] in the dtype of values, zeros where no part counts; float32 [T, Hq], base 2.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check(values, lse, values.dim() == 4)
    num_rows, num_parts = values.shape[:2]
    indptr = torch.arange(num_rows + 1, dtype=torch.int32, device=values.device) * num_parts
    out = torch.empty_like(values[:, 0])
    out_lse = torch.empty(lse[:, 0].shape, dtype=torch.float32, device=values.device)
    flat = (values.flatten(0, 1), lse.flatten(0, 1))
    merge_launch(*flat, indptr, None, out, out_lse).run()
    return out, out_lse


def merge_launch(
    values: Tensor,
    lse: Tensor,
    indptr: Tensor,
    rows: Tensor | None,
    out: Tensor,
    out_lse: Tensor | None,
) -> Launch:
    """Writes row `rows[i]` of `out` from states `indptr[i]` to `indptr[i + 1]`.

    Args:
        values: [N, Hq, D], contiguous.
        lse: float32 [N, Hq], contiguous, base 2.
        indptr: int32 [R + 1].
        rows: int32 [R], all different; None: row i is i.
        out: [T, Hq, D]; any strides but the last, which is 1.
        out_lse: float32 [T, Hq], the last stride 1; None: not wanted.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check(values, lse, values.dim() == 3)
    _, num_heads, head_dim = values.shape
    block_d = max(16, 1 << (head_dim - 1).bit_length())
    block_h = min(1 << (num_heads - 1).bit_length(), _BLOCK // block_d)
    args = {
        "values": values,
        "state_lse": lse,
        "indptr": indptr,
        "rows": rows,
        "out": out,
        "lse": out_lse,
        "out_row_stride": out.stride(0),
        "out_head_stride": out.stride(1),
        "lse_row_stride": 0 if out_lse is None else out_lse.stride(0),
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_H": block_h,
        "BLOCK_D": block_d,
    }
    return Launch(merge_rows, (indptr.numel() - 1, -(-num_heads // block_h)), args, 4)


def _check(values: Tensor, lse: Tensor, fits: bool) -> None:
    if not fits or lse.shape != values.shape[:-1] or lse.dtype != torch.float32:
        raise ValueError(f"values {list(values.shape)} and {lse.dtype} lse {list(lse.shape)}")
    if not values.is_contiguous() or not lse.is_contiguous():
        raise ValueError("values and lse must be contiguous")
