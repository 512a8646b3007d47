"""Matrix products with weights that are put in order once, where they are bfloat16.

Plain `torch.nn.functional.linear` has oneDNN reorder a weight in every call, which a step of few
tokens pays as dearly as the product itself. A weight is packed for our own kernel on the CPUs that
it is for (`kernels.cpu.linear`), else for oneDNN's.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.weights import DecoderWeights, LayerWeights
from blendrun.kernels.cpu import linear as kernel
from blendrun.kernels.cpu.silu_mul import silu_mul

_USUAL_TOKENS = 512  # whose order is good for steps of any size
_MATRICES = ("qkv", "out", "gate_up", "down")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times `weight` [out, in], packed or not, transposed, plus bias [out]."""
    if is_panels(weight):
        return kernel.linear(x, weight, bias)
    if weight.is_mkldnn:
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return packed
    return F.linear(x, weight, bias)


def linear_silu_mul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu of the first half of `linear`'s columns times its second half, [T, out / 2]."""
    if is_panels(weight):
        return kernel.linear_silu_mul(x, weight, bias)
    return silu_mul(linear(x, weight, bias))


def is_panels(weight: Tensor) -> bool:
    """Whether a weight is packed for our own kernel."""
    return weight.dim() == 4


def shape_of(weight: Tensor) -> tuple[int, int]:
    """(out, in) of a weight, packed or not."""
    if is_panels(weight):
        num_panels, num_words, width, _ = weight.shape
        return num_panels * width, 2 * num_words
    return weight.shape[0], weight.shape[1]


def pack_weights(weights: DecoderWeights) -> DecoderWeights:
    """The weights with their matrices packed, where that helps: bf16 on a CPU that has it.

    Takes over the matrices of `weights`, which are empty afterwards: no more than one is there
    twice.
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
    made = {name: _take_over(getattr(layer, name)) for name in _MATRICES if name != "gate_up"}
    return replace(layer, gate_up=_take_over(layer.gate_up, is_gated=True), **made)


def _take_over(weight: Tensor, *, is_gated: bool = False) -> Tensor:
    packed = _packed(weight, is_gated)
    weight.untyped_storage().resize_(0)
    return packed


def _packed(weight: Tensor, is_gated: bool = False) -> Tensor:
    if kernel.is_fast() and kernel.can_pack(weight):
        return kernel.pack(weight, is_gated=is_gated)
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_TOKENS)
    return packed
