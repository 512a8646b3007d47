"""Norms, rotary embedding and activation."""

import torch
from torch import Tensor
from torch.nn import functional as F

from flashinfer_stand_in.contract import check_launch, require


def rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:
    check_launch(input)
    require(input.dim() in (2, 3) and input.stride(-1) == 1, "rows, or heads of rows")
    require(weight.shape == input.shape[-1:] and weight.dtype == input.dtype, "a weight like them")
    normed = F.rms_norm(input.float(), weight.shape, weight.float(), eps).to(input.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
) -> None:
    check_launch(input)
    require(input.dim() == 2 and input.shape == residual.shape, "a row for each row")
    require(input.dtype == residual.dtype == weight.dtype, "one dtype")
    require(input.data_ptr() != residual.data_ptr(), "two tensors")
    residual += input
    rmsnorm(residual, weight, eps, out=input)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    check_launch(query)
    require(is_neox, "pairs are (i, i + D / 2) here")
    require(cos_sin_cache.dtype == torch.float32, "cos_sin_cache is float32")
    require(cos_sin_cache.is_contiguous() and positions.is_contiguous(), "contiguous")
    require(positions.dtype in (torch.int32, torch.int64), "positions are integers")
    require(len(query) == len(key) == len(positions), "a position for each row")
    cos, sin = cos_sin_cache[positions.long()][:, None].chunk(2, dim=-1)
    for rows in (query, key):
        heads = rows.view(len(rows), -1, head_size)
        first, second = heads.float().chunk(2, dim=-1)
        heads.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))


def silu_and_mul(input: Tensor, out: Tensor | None = None) -> Tensor:
    check_launch(input)
    require(input.shape[-1] % 2 == 0, "rows have halves")
    gate, up = input.float().chunk(2, dim=-1)
    made = (F.silu(gate) * up).to(input.dtype)
    return made if out is None else out.copy_(made)
