"""A token drawn for each row of logits, in Triton: the tokens that the product's sampler draws.

As in `blendrun.engine.sampler`, which is the reference: weights in float64, and one uniform number
of `noise.py` inverts their cumulative sum in token-id order. Sums are added in another order, so
a token may differ where the number falls within rounding (about 1e-13) of a border. Top-p needs
sorted logits and is left to the caller.
"""

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl
from torch import Tensor

from blendrun.kernels.triton.launch import Launch
from blendrun.kernels.triton.noise import uniform

_BLOCK = 1024
_MAX_BLOCKS = 4096  # what one program adds up


@dataclass(frozen=True, slots=True, eq=False)
class DrawColumns:
    """One entry per row of logits; tensors [S] on the device."""

    temperature: Tensor  # float32, above 0 in rows that are drawn
    min_p: Tensor  # float32, 0 = off
    lowest: Tensor  # float32, logits below it are left out: top-k's border; minus infinity = off
    seed: Tensor  # int64
    key: Tensor  # int64
    sample: Tensor  # int32
    position: Tensor  # int64


@triton.jit
def add_block_weights(
    logits, best, rows, temperature, min_p, lowest, sums,
    row_len, row_stride, column_stride, num_blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: drawn rows, blocks."""
    number = tl.program_id(0)
    row = tl.load(rows + number).to(tl.int64)
    block = tl.program_id(1)
    weights = _weights(
        logits, best, row, temperature, min_p, lowest,
        block, row_len, row_stride, column_stride, BLOCK,
    )  # fmt: skip
    tl.store(sums + number.to(tl.int64) * num_blocks + block, tl.sum(weights, 0))


@triton.jit
def draw_rows(
    logits, best, rows, temperature, min_p, lowest, sums, seed, key, sample, position, token_ids,
    row_len, row_stride, column_stride, num_blocks, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Grid: drawn rows. NUM_BLOCKS is a power of two."""
    number = tl.program_id(0)
    row = tl.load(rows + number).to(tl.int64)
    u = uniform(
        tl.load(seed + row), tl.load(key + row), tl.load(sample + row), tl.load(position + row)
    )
    blocks = tl.arange(0, NUM_BLOCKS)
    place = sums + number.to(tl.int64) * num_blocks + blocks
    sum_of = tl.load(place, mask=blocks < num_blocks, other=0.0)
    up_to = tl.cumsum(sum_of, 0)
    # u is 1 - 2**-53 at most, so the target stays below the total
    target = u * tl.max(up_to, 0)
    block = _first_above(up_to, sum_of, target, NUM_BLOCKS)
    before = tl.max(tl.where(blocks < block, up_to, 0.0), 0)
    weights = _weights(
        logits, best, row, temperature, min_p, lowest,
        block, row_len, row_stride, column_stride, BLOCK,
    )  # fmt: skip
    chosen = _first_above(before + tl.cumsum(weights, 0), weights, target, BLOCK)
    tl.store(token_ids + number, (block * BLOCK + chosen).to(tl.int64))


@triton.jit
def _first_above(up_to, weights, target, BLOCK: tl.constexpr):
    """The first place with a weight where `up_to` exceeds the target, else the last with a weight.

    A parallel sum may fall by its rounding where it should stay, hence both conditions.
    """
    places = tl.arange(0, BLOCK)
    first = tl.min(tl.where((up_to > target) & (weights > 0), places, BLOCK), 0)
    last = tl.max(tl.where(weights > 0, places, 0), 0)
    return tl.where(first < BLOCK, first, last)


@triton.jit
def _weights(
    logits, best, row, temperature, min_p, lowest,
    block, row_len, row_stride, column_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    """float64 [BLOCK] weights of a block, 1 for the best token; zeros behind the row."""
    columns = block * BLOCK + tl.arange(0, BLOCK)
    start = logits + row * row_stride
    x = tl.load(
        start + columns.to(tl.int64) * column_stride, mask=columns < row_len, other=float("-inf")
    ).to(tl.float32)
    highest = tl.load(start + tl.load(best + row) * column_stride).to(tl.float64)
    x = tl.where(x < tl.load(lowest + row), float("-inf"), x)
    heat = tl.load(temperature + row).to(tl.float64)
    weights = tl.exp(x.to(tl.float64) / heat - highest / heat)
    return tl.where(weights < tl.load(min_p + row).to(tl.float64), 0.0, weights)


def draw(logits: Tensor, best: Tensor, rows: Tensor, columns: DrawColumns) -> Tensor:
    """A token for some rows of logits.

    Args:
        logits: [S, N] float32, float16 or bfloat16, any strides; finite, or minus infinity for
            tokens that must not be drawn.
        best: int64 [S], `argmax.argmax` of the logits.
        rows: int32 [R], which of the S.
        columns: of all S rows.

    Returns:
        int64 [R].

    Raises:
        ValueError: shapes or dtypes do not fit, or N is 0 or above 4 Mi.
    """
    token_ids = torch.empty(rows.shape, dtype=torch.int64, device=logits.device)
    for launch in draw_launches(logits, best, rows, columns, token_ids):
        launch.run()
    return token_ids


def draw_launches(
    logits: Tensor, best: Tensor, rows: Tensor, columns: DrawColumns, token_ids: Tensor
) -> list[Launch]:
    """`draw` into int64 `token_ids` [R]."""
    _check(logits, best, rows, columns)
    row_len, num_rows = logits.shape[1], rows.numel()
    block = min(_BLOCK, triton.next_power_of_2(row_len))
    num_blocks = triton.cdiv(row_len, block)
    shared = {
        **{"logits": logits, "best": best, "rows": rows},
        **{name: getattr(columns, name) for name in ("temperature", "min_p", "lowest")},
        "sums": torch.empty(num_rows, num_blocks, dtype=torch.float64, device=logits.device),
        **{"row_len": row_len, "row_stride": logits.stride(0), "column_stride": logits.stride(1)},
        **{"num_blocks": num_blocks, "BLOCK": block},
    }
    counters = {name: getattr(columns, name) for name in ("seed", "key", "sample", "position")}
    blocks = {"NUM_BLOCKS": triton.next_power_of_2(num_blocks)}
    second = {**shared, **counters, **blocks, "token_ids": token_ids}
    return [
        Launch(add_block_weights, (num_rows, num_blocks), shared, 4),
        Launch(draw_rows, (num_rows,), second, 8),
    ]


def _check(logits: Tensor, best: Tensor, rows: Tensor, columns: DrawColumns) -> None:
    if logits.dim() != 2 or not 0 < logits.shape[1] <= _BLOCK * _MAX_BLOCKS:
        raise ValueError(f"logits must be [S, N], N > 0, not {list(logits.shape)}")
    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"no draws from logits of {logits.dtype}")
    if best.dtype != torch.int64 or rows.dtype != torch.int32:
        raise ValueError("best must be int64 and rows int32")
    tensors = (best, *(getattr(columns, field.name) for field in fields(columns)))
    if any(t.shape != logits.shape[:1] or not t.is_contiguous() for t in tensors):
        raise ValueError(f"best and columns must be contiguous [{logits.shape[0]}]")
