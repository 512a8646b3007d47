"""How fast this CPU does what a step is made of: products of a model's shapes, attention, both.

Products run through the weights of all layers in turn, as in a step, so that they come from memory
where they do not fit into caches.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from blendrun.engine import measured_attention
from blendrun.engine.decoder import Decoder
from blendrun.engine.measured_attention import AttentionRates, attention_call, measure_attention
from blendrun.engine.measured_overlap import Together, measure_together
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.products import linear
from blendrun.engine.stopwatch import seconds_of

PRODUCT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_MOST_HEADS = 512  # rows of the output head: as many requests end a step with a token
_TOGETHER_TOKENS, _TOGETHER_S = 512, 0.05  # of a step; about, of a call


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    product_tokens: tuple[int, ...]
    product_flops: tuple[float, ...]  # FLOP/s at these step sizes
    head_flops: tuple[float, ...]  # of the output head, at the first of these sizes
    attention: AttentionRates
    together: Together | None  # None: one thread cannot do two things


def measure_rates(
    decoder: Decoder, attention: PagedAttention, progress: Callable[[str], None]
) -> MeasuredRates:
    """Measure with the weights of `decoder`. Takes three quarters of a minute on two cores."""
    with torch.inference_mode():
        layers = _layer_weights(decoder)
        progress(f"products of 1 to {PRODUCT_TOKENS[-1]} tokens")
        flops = tuple(_flops(layers, tokens) for tokens in PRODUCT_TOKENS)
        progress("the output head")
        head = [decoder.weights.head]
        heads = tuple(_flops(head, tokens) for tokens in PRODUCT_TOKENS if tokens <= _MOST_HEADS)
        progress("attention")
        rates = measure_attention(decoder, attention)
        progress("products and attention at once")
        num_seqs = measured_attention.CACHED_TOKENS // measured_attention.LONG
        reads = attention_call(decoder, attention, num_seqs, 1, measured_attention.LONG)
        num_params = int(_TOGETHER_S * max(flops) / (2 * _TOGETHER_TOKENS))
        together = measure_together(products(_some(layers, num_params), _TOGETHER_TOKENS), reads)
    return MeasuredRates(PRODUCT_TOKENS, flops, heads, rates, together)


def products(weights: list[Tensor], tokens: int) -> Callable[[], None]:
    """The matrix products with `weights` [out, in] for a step over `tokens` tokens."""
    inputs = {
        width: torch.randn(tokens, width).to(weights[0].dtype)
        for width in sorted({weight.shape[1] for weight in weights})
    }

    def run() -> None:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)

    return run


def _layer_weights(decoder: Decoder) -> list[Tensor]:
    return [
        weight
        for layer in decoder.weights.layers
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]


def _some(weights: list[Tensor], num_params: int) -> list[Tensor]:
    """The first of `weights`, with about so many parameters in all; one at least."""
    total = list(accumulate(weight.numel() for weight in weights))
    return weights[: max(bisect_right(total, num_params), 1)]


def _flops(weights: list[Tensor], tokens: int) -> float:
    """FLOP/s of the products."""
    num_params = sum(weight.numel() for weight in weights)
    return 2 * tokens * num_params / seconds_of(products(weights, tokens))
