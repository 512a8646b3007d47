"""Matrix products with weights that are put in order once, where they are bfloat16.

Plain `torch.nn.functional.linear` has oneDNN reorder a weight in every call, which a step of few
tokens pays as dearly as the product itself. A weight is packed for our own kernel on the CPUs that
it is for (`kernels.cpu.linear`), else for oneDNN's.
"""

from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.decoder_weights import (
    DecoderWeights,
    ExpertWeights,
    LayerWeights,
    MlpWeights,
    Stack,
)
from blendrun.engine.row_blocks import in_blocks
from blendrun.kernels.cpu import linear as kernel

_USUAL_TOKENS = 512  # whose order is good for steps of any size
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


def pack_weights(weights: DecoderWeights) -> DecoderWeights:
    """The weights with their matrices packed, where that helps: bf16 on a CPU that has it.

    Takes over the matrices of `weights`, which are empty afterwards: no more than one is there
    twice, or one kind of a layer's experts.
    """
    if not _can_pack(weights.embedding):
        return weights
    layers = tuple(_pack_layer(layer) for layer in weights.layers)
    is_tied = weights.head is weights.embedding  # which is looked up, too, and stays as it is
    head = _packed(weights.embedding) if is_tied else _take_over(weights.head)
    return replace(weights, layers=layers, head=head)


def _can_pack(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _pack_layer(layer: LayerWeights) -> LayerWeights:
    """With the layer's norms in panels, where there are panels."""
    assert layer.input_norm is not None
    qkv = _take_over(layer.qkv, norm=layer.input_norm)
    packed = replace(layer, qkv=qkv, out=_take_over(layer.out))
    if is_panels(qkv):
        packed = replace(packed, input_norm=None)
    if isinstance(layer.mlp, ExpertWeights):
        return replace(packed, mlp=_pack_experts(layer.mlp))
    mlp = _pack_mlp(layer.mlp, layer.post_norm)
    return replace(packed, mlp=mlp, post_norm=None if is_panels(mlp.gate_up) else layer.post_norm)


def _pack_mlp(mlp: MlpWeights, norm: Tensor | None) -> MlpWeights:
    gate_up = _take_over(mlp.gate_up, is_gated=True, norm=norm)
    return replace(mlp, gate_up=gate_up, down=_take_over(mlp.down))


def _pack_experts(experts: ExpertWeights) -> ExpertWeights:
    gate_up, down = _take_over_all(experts.gate_up), _take_over_all(experts.down)
    return replace(experts, gate_up=gate_up, down=down)


def _take_over_all(weights: Stack) -> tuple[Tensor, ...]:
    packed = tuple(_packed(weight) for weight in weights)
    for weight in weights:  # which may have one storage
        weight.untyped_storage().resize_(0)
    return packed


def _take_over(weight: Tensor, *, is_gated: bool = False, norm: Tensor | None = None) -> Tensor:
    packed = _packed(weight, is_gated, norm)
    weight.untyped_storage().resize_(0)
    return packed


def _packed(weight: Tensor, is_gated: bool = False, norm: Tensor | None = None) -> Tensor:
    if kernel.is_fast() and kernel.can_pack(weight):
        return kernel.pack(weight, is_gated=is_gated, norm=norm)
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_TOKENS)
    return packed
