"""The best entry of each row of logits in Triton: the best of each block, then of the blocks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blendrun.kernels.triton.launch import Launch

_BLOCK = 4096
_MAX_BLOCKS = 4096  # what one program merges


@triton.jit
def best_of_blocks(
    logits, best, value, finite, row_len, row_stride, column_stride, num_blocks, BLOCK: tl.constexpr
):
    """Grid: rows, blocks. Of equal ones the first."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    place = row * row_stride + columns.to(tl.int64) * column_stride
    x = tl.load(logits + place, mask=columns < row_len, other=float("-inf"))
    x = x.to(value.dtype.element_ty)
    is_finite = tl.abs(x) < float("inf")
    all_finite = tl.min((is_finite | (columns >= row_len)).to(tl.int32), 0)
    x = tl.where(is_finite, x, float("-inf"))
    highest, index = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best + row * num_blocks + block, block * BLOCK + index)
    tl.store(value + row * num_blocks + block, highest)
    tl.store(finite + row * num_blocks + block, all_finite)


@triton.jit
def best_of_rows(best, value, finite, row_best, row_finite, num_blocks, BLOCK: tl.constexpr):
    """Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.arange(0, BLOCK)
    is_block = blocks < num_blocks
    place = row * num_blocks + blocks
    x = tl.load(value + place, mask=is_block, other=float("-inf"))
    _, index = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(row_best + row, tl.load(best + row * num_blocks + index).to(tl.int64))
    all_finite = tl.min(tl.load(finite + place, mask=is_block, other=1), 0)
    tl.store(row_finite + row, all_finite != 0)


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Where each row of `logits` [R, N] is highest, and whether all of it is finite.

    Logits may have any strides.

    Returns:
        int64 [R], the first of several that are equal, anything where not finite; bool [R].

    Raises:
        ValueError: they are not two-dimensional, or N is 0 or above 16 Mi.
    """
    if logits.dim() != 2 or not 0 < logits.shape[1] <= _BLOCK * _MAX_BLOCKS:
        raise ValueError(f"logits must be [R, N], N > 0, not {list(logits.shape)}")
    best = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    finite = torch.empty(logits.shape[0], dtype=torch.bool, device=logits.device)
    for launch in argmax_launches(logits, best, finite):
        launch.run()
    return best, finite


def argmax_launches(logits: Tensor, best: Tensor, finite: Tensor) -> list[Launch]:
    """`argmax` into int64 `best` [R] and bool `finite` [R]."""
    num_rows, row_len = logits.shape
    block = min(_BLOCK, triton.next_power_of_2(row_len))
    num_blocks = triton.cdiv(row_len, block)
    exact = torch.promote_types(logits.dtype, torch.float32)
    size, device = (num_rows, num_blocks), logits.device
    parts = {
        "best": torch.empty(size, dtype=torch.int32, device=device),
        "value": torch.empty(size, dtype=exact, device=device),
        "finite": torch.empty(size, dtype=torch.int32, device=device),
        "num_blocks": num_blocks,
    }
    strides = {"row_stride": logits.stride(0), "column_stride": logits.stride(1)}
    first = {"logits": logits, "row_len": row_len, **strides, **parts, "BLOCK": block}
    blocks = {"BLOCK": triton.next_power_of_2(num_blocks)}
    second = {**parts, "row_best": best, "row_finite": finite, **blocks}
    return [
        Launch(best_of_blocks, (num_rows, num_blocks), first, 4),
        Launch(best_of_rows, (num_rows,), second, 1),
    ]
