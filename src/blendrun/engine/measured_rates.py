"""How fast a device does what a step is made of: products of a model's shapes, attention, both.

Products run through the weights of all layers in turn, as in a step, so that they come from memory
where they do not fit into caches.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from blendrun.engine import measured_attention, stopwatch
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_weights import ExpertWeights
from blendrun.engine.measured_attention import AttentionRates, attention_call, measure_attention
from blendrun.engine.measured_overlap import Together, measure_together
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.products import is_panels, linear, shape_of
from blendrun.engine.stopwatch import seconds_of, wait_for
from blendrun.kernels.cpu import linear as panels
from blendrun.kernels.cpu.calls import can_run
from blendrun.kernels.cpu.screened_argmax import Screen

PRODUCT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_ROUNDS = 2
_MOST_HEADS = 512  # rows of the output head: as many requests end a step with a token
_TOGETHER_TOKENS, _TOGETHER_S = 512, 0.05  # of a step; about, of a call


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    product_tokens: tuple[int, ...]
    product_flops: tuple[float, ...]  # FLOP/s at these step sizes
    head_flops: tuple[float, ...]  # of the output head, at the first of these sizes
    attention: AttentionRates
    together: Together | None  # None: not on a CPU, or one thread cannot do two things


def measure_rates(
    decoder: Decoder, attention: PagedAttention, progress: Callable[[str], None]
) -> MeasuredRates:
    """Measure with the weights of `decoder`. Takes three quarters of a minute on two cores."""
    with torch.inference_mode():
        layers = products_of(decoder)
        progress(f"products of 1 to {PRODUCT_TOKENS[-1]} tokens")
        flops = _all_flops(layers, PRODUCT_TOKENS)
        progress("the output head")
        few = [tokens for tokens in PRODUCT_TOKENS if tokens <= _MOST_HEADS]
        heads = _all_flops([Alternatives([decoder.weights.head])], few, decoder.weights.screen)
        progress("attention")
        rates = measure_attention(decoder, attention)
        if decoder.device.type != "cpu":
            return MeasuredRates(PRODUCT_TOKENS, flops, heads, rates, None)
        progress("products and attention at once")
        num_seqs = measured_attention.CACHED_TOKENS // measured_attention.LONG
        reads = attention_call(decoder, attention, num_seqs, 1, measured_attention.LONG)
        num_params = int(_TOGETHER_S * max(flops) / (2 * _TOGETHER_TOKENS))
        together = measure_together(products(_some(layers, num_params), _TOGETHER_TOKENS), reads)
    return MeasuredRates(PRODUCT_TOKENS, flops, heads, rates, together)


@dataclass(frozen=True, slots=True, eq=False)
class Alternatives:
    """Weights [out, in] of one shape, of which each token takes some: experts, or one weight."""

    weights: Sequence[Tensor] | Tensor
    per_token: int = 1

    @property
    def num_params(self) -> int:
        """That one token multiplies with."""
        return self.weights[0].numel() * self.per_token

    def num_rows(self, tokens: int) -> list[int]:
        """Tokens that each of the weights gets; choices are uniform and independent."""
        random = torch.Generator().manual_seed(tokens)
        chances = torch.rand(tokens, len(self.weights), generator=random)
        chosen = chances.topk(self.per_token, dim=1).indices
        return chosen.flatten().bincount(minlength=len(self.weights)).tolist()


def products(weights: Sequence[Alternatives], tokens: int) -> Callable[[], None]:
    """The matrix products with `weights` for a step over `tokens` tokens, as a rank makes them.

    One that is alone: those of a tensor-parallel group call each product by itself.
    """
    calls = [
        (weight, num_rows)
        for group in weights
        for weight, num_rows in zip(group.weights, group.num_rows(tokens), strict=True)
        if num_rows
    ]
    first = calls[0][0]  # packed ones lie otherwise, which `to` must not follow
    inputs = {
        size: torch.randn(size).to(first.device, first.dtype)
        for size in sorted({(num_rows, shape_of(weight)[1]) for weight, num_rows in calls})
    }

    pairs = [(inputs[num_rows, shape_of(weight)[1]], weight) for weight, num_rows in calls]
    if can_run() and all(is_panels(weight) for _, weight in pairs):
        return panels.InARow(pairs).run

    def run() -> None:
        for x, weight in pairs:
            linear(x, weight)

    return run


def products_of(decoder: Decoder) -> list[Alternatives]:
    """The weights of all layers, in the order of a step."""
    found = []
    for layer in decoder.weights.layers:
        mlp, per_token = layer.mlp, decoder.config.experts.per_token
        found += [Alternatives([layer.qkv]), Alternatives([layer.out])]
        if isinstance(mlp, ExpertWeights):
            found.append(Alternatives([mlp.router]))
            found += [Alternatives(tuple(each), per_token) for each in (mlp.gate_up, mlp.down)]
        else:
            found += [Alternatives([mlp.gate_up]), Alternatives([mlp.down])]
    return found


def _some(weights: list[Alternatives], num_params: int) -> list[Alternatives]:
    """The first of `weights`, with about so many parameters in all; one at least."""
    total = list(accumulate(group.num_params for group in weights))
    return weights[: max(bisect_right(total, num_params), 1)]


def _all_flops(
    weights: Sequence[Alternatives], sizes: Sequence[int], screen: Screen | None = None
) -> tuple[float, ...]:
    """FLOP/s at each size, the better of two rounds: others may disturb one for a while."""
    rounds = [[_flops(weights, tokens, screen) for tokens in sizes] for _ in range(_ROUNDS)]
    return tuple(map(max, zip(*rounds, strict=True)))


def _flops(weights: Sequence[Alternatives], tokens: int, screen: Screen | None) -> float:
    """FLOP/s of the products; with a `screen` those that finding their best columns stands for."""
    num_params = sum(group.num_params for group in weights)
    wait = wait_for(weights[0].weights[0].device)
    call: Callable[[], object]
    if screen is None:
        call = products(weights, tokens)
    else:
        call = partial(screen.best, torch.randn(tokens, len(screen.rotation)).bfloat16())
    return 2 * tokens * num_params / seconds_of(call, wait, stopwatch.MEASURE_S / _ROUNDS)
