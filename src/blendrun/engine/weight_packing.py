"""Weights in the order in which products read them, where they are bfloat16 on a CPU that has it.

Plain `torch.nn.functional.linear` has oneDNN reorder a weight in every call, which a step of few
tokens pays as dearly as the product itself. A weight is packed for our own kernel on the CPUs that
it is for (`kernels.cpu.linear`), else for oneDNN's.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from blendrun.engine.decoder_weights import (
    DecoderWeights,
    ExpertWeights,
    LayerWeights,
    MlpWeights,
    Stack,
)
from blendrun.engine.products import is_panels
from blendrun.kernels.cpu import huge_pages, screened_argmax
from blendrun.kernels.cpu import linear as kernel
from blendrun.kernels.cpu.screened_argmax import Screen

_USUAL_TOKENS = 512  # whose order is good for steps of any size


def pack_weights(weights: DecoderWeights) -> DecoderWeights:
    """The weights with their matrices packed, where that helps; the others as they are.

    Takes over the matrices of `weights`, which are empty afterwards: no more than one is there
    twice, or one kind of a layer's experts. The output head has its 8-bit screen beside it.
    """
    if not _can_pack(weights.embedding):
        return weights
    packer = _Packer(sum(matrix.numel() for matrix in _matrices(weights)))
    layers = tuple(packer.layer(layer) for layer in weights.layers)
    is_tied = weights.head is weights.embedding  # which is looked up, too, and stays as it is
    head = packer.packed(weights.embedding) if is_tied else packer.take_over(weights.head)
    can_screen = is_panels(head) and screened_argmax.is_fast() and screened_argmax.can_screen(head)
    screen = Screen.of(head) if can_screen else None
    return replace(weights, layers=layers, head=head, screen=screen)


def _can_pack(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _matrices(weights: DecoderWeights) -> Iterator[Tensor]:
    """All that are packed."""
    for layer in weights.layers:
        yield from (layer.qkv, layer.out)
        for stack in (layer.mlp.gate_up, layer.mlp.down):
            yield from [stack] if isinstance(stack, Tensor) else stack
    yield weights.head


class _Packer:
    """Packs one weight after the other; panels lie side by side."""

    def __init__(self, num_elements: int) -> None:
        self._room = huge_pages.empty((num_elements if kernel.is_fast() else 0,), torch.bfloat16)

    def layer(self, layer: LayerWeights) -> LayerWeights:
        """With the layer's norms in panels, where there are panels."""
        qkv = self.take_over(layer.qkv, norm=layer.input_norm)
        packed = replace(layer, qkv=qkv, out=self.take_over(layer.out))
        if is_panels(qkv):
            packed = replace(packed, input_norm=None)
        if isinstance(layer.mlp, ExpertWeights):
            return replace(packed, mlp=self._experts(layer.mlp))
        mlp = self._mlp(layer.mlp, layer.post_norm)
        post_norm = None if is_panels(mlp.gate_up) else layer.post_norm
        return replace(packed, mlp=mlp, post_norm=post_norm)

    def _mlp(self, mlp: MlpWeights, norm: Tensor | None) -> MlpWeights:
        gate_up = self.take_over(mlp.gate_up, is_gated=True, norm=norm)
        return replace(mlp, gate_up=gate_up, down=self.take_over(mlp.down))

    def _experts(self, experts: ExpertWeights) -> ExpertWeights:
        gate_up, down = self._take_over_all(experts.gate_up), self._take_over_all(experts.down)
        return replace(experts, gate_up=gate_up, down=down)

    def _take_over_all(self, weights: Stack) -> tuple[Tensor, ...]:
        packed = tuple(self.packed(weight) for weight in weights)
        for weight in weights:  # which may have one storage
            weight.untyped_storage().resize_(0)
        return packed

    def take_over(
        self, weight: Tensor, *, is_gated: bool = False, norm: Tensor | None = None
    ) -> Tensor:
        """`packed`, and `weight` is empty afterwards."""
        packed = self.packed(weight, is_gated, norm)
        weight.untyped_storage().resize_(0)
        return packed

    def packed(self, weight: Tensor, is_gated: bool = False, norm: Tensor | None = None) -> Tensor:
        if kernel.is_fast() and kernel.can_pack(weight):
            out, self._room = self._room.tensor_split([weight.numel()])
            return kernel.pack(weight, is_gated=is_gated, norm=norm, out=out)
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_TOKENS)
        return packed
