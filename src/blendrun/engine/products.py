"""Matrix products with weights that are packed (`weight_packing`), or as they come."""

from itertools import pairwise
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.decoder_weights import Stack
from blendrun.engine.row_blocks import in_blocks
from blendrun.kernels.cpu import linear as kernel

_GROUPED_ALIGN = 16  # bytes, of a matrix and its rows


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x [T, in] times `weight` [out, in], packed or not, transposed, plus bias [out].

    `eps` is for panels with a norm in them (`kernels.cpu.linear`).
    """
    if is_panels(weight):
        return kernel.linear(x, weight, bias, eps=eps)
    if weight.is_mkldnn:
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return packed
    return F.linear(x, weight, bias)


def is_panels(weight: Tensor) -> bool:
    """Whether a weight is packed for our own kernel."""
    return weight.dim() == 4


def shape_of(weight: Tensor) -> tuple[int, int]:
    """(out, in) of a weight, packed or not."""
    if is_panels(weight):
        num_panels, num_words, width, _ = weight.shape
        return num_panels * width, 2 * num_words
    return weight.shape[0], weight.shape[1]


def grouped_linear(x: Tensor, ends: Tensor, weights: Stack, row_block: int | None = None) -> Tensor:
    """Each group of rows times its weight, as one product for each group that has rows.

    Args:
        x: [T, in], T > 0.
        ends: int64 [G], ascending: group g has the rows from the end of the one before to its own.
        weights: G times [out, in], packed or not.
        row_block: see `row_blocks`.

    Returns:
        [T, out].
    """
    if row_block is None and _is_one_kernel(weights):
        made: Tensor = F.grouped_mm(x, weights.transpose(1, 2), offs=ends.int())
        return made
    parts: list[Tensor] = []
    for weight, (start, end) in zip(weights, pairwise([0, *ends.tolist()]), strict=True):
        if end > start:
            parts += in_blocks(lambda rows, w=weight: (linear(rows, w),), row_block, x[start:end])
    return torch.cat(parts)


def _is_one_kernel(weights: Stack) -> TypeGuard[Tensor]:
    """Whether one launch does all groups; without it the host waits to learn their sizes."""
    return (
        isinstance(weights, Tensor)
        and weights.device.type == "cuda"
        and weights.dtype == torch.bfloat16
        and hasattr(F, "grouped_mm")
        and all(stride * weights.itemsize % _GROUPED_ALIGN == 0 for stride in weights.stride()[:2])
    )
