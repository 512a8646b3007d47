"""How fast this CPU does what a step is made of: products of a model's shapes, attention, both.

Times are medians of repeated calls; products run through the weights of all layers in turn, as in
a step, so that they come from memory where they do not fit into caches.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.products import linear
from blendrun.kernels.cpu.attention import CpuAttention

PRODUCT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_PAGE_SIZE = 16
_PREFILL_TOKENS = 1024
_DECODE_TOKENS, _CACHED_TOKENS = 1024, 256 * 1024  # of one request; of all
_LEAST_CALLS, _MEASURE_S = 3, 1.5  # for each figure


@dataclass(frozen=True, slots=True)
class Together:
    """Seconds of products and of KV reads, alone with all threads, and at once with half each."""

    products_s: float
    reads_s: float
    both_s: float


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    product_tokens: tuple[int, ...]
    product_flops: tuple[float, ...]  # FLOP/s at these step sizes
    read_bandwidth: float  # byte/s of K and V in decode attention
    prefill_flops: float  # FLOP/s of causal prefill attention
    together: Together | None  # None: one thread cannot do two things


def measure_rates(
    decoder: Decoder, attention: CpuAttention, progress: Callable[[str], None]
) -> MeasuredRates:
    """Measure with the weights of `decoder`. Takes half a minute on two cores of a server."""
    with torch.inference_mode():
        flops = []
        for tokens in PRODUCT_TOKENS:
            progress(f"products of {tokens} tokens")
            work = products(decoder, tokens)
            flops.append(2 * tokens * _params(decoder) / seconds_of(work))
        progress("decode attention")
        reads, num_bytes = decode_reads(decoder, attention)
        reads_s = seconds_of(reads)
        progress("prefill attention")
        prefill_flops = _prefill_flops(decoder, attention)
        progress("products and attention at once")
        together = _together(products(decoder, 512), reads)
    return MeasuredRates(PRODUCT_TOKENS, tuple(flops), num_bytes / reads_s, prefill_flops, together)


def seconds_of(work: Callable[[], object]) -> float:
    """Median time of a call, after one that warms up."""
    work()
    seconds: list[float] = []
    while len(seconds) < _LEAST_CALLS or sum(seconds) < _MEASURE_S:
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def products(decoder: Decoder, tokens: int) -> Callable[[], None]:
    """The matrix products of all layers for a step over `tokens` tokens."""
    weights = [
        weight
        for layer in decoder.weights.layers
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    inputs = {
        width: torch.randn(tokens, width).to(decoder.dtype)
        for width in sorted({weight.shape[1] for weight in weights})
    }

    def run() -> None:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)

    return run


def _params(decoder: Decoder) -> int:
    return sum(
        weight.numel()
        for layer in decoder.weights.layers
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )


def decode_reads(decoder: Decoder, attention: CpuAttention) -> tuple[Callable[[], Tensor], int]:
    """Decode attention over more K and V than caches hold, and the bytes that it reads."""
    num_seqs = _CACHED_TOKENS // _DECODE_TOKENS
    work, num_bytes = _attention(decoder, attention, num_seqs, 1, _DECODE_TOKENS)
    return work, num_bytes


def _prefill_flops(decoder: Decoder, attention: CpuAttention) -> float:
    n = _PREFILL_TOKENS
    work, _ = _attention(decoder, attention, 1, n, n)
    config = decoder.config
    return 2 * config.q_size * n * n / seconds_of(work)  # the causal half of 4 * width * n²


def _attention(
    decoder: Decoder, attention: CpuAttention, num_seqs: int, queries: int, context: int
) -> tuple[Callable[[], Tensor], int]:
    """Attention of one layer for equal sequences on pages in random order, and its KV bytes."""
    config = decoder.config
    pages = -(-context // _PAGE_SIZE)
    k_cache, v_cache = attention.alloc_kv_cache(
        1, num_seqs * pages, _PAGE_SIZE, config.num_kv_heads, config.head_dim, decoder.dtype
    )
    k_cache.normal_()
    v_cache.normal_()
    q = torch.randn(num_seqs * queries, config.num_heads, config.head_dim).to(decoder.dtype)
    work = partial(
        attention.paged_attention,
        q,
        k_cache[0],
        v_cache[0],
        torch.arange(num_seqs + 1, dtype=torch.int32) * queries,
        torch.full((num_seqs,), context, dtype=torch.int32),
        torch.randperm(num_seqs * pages, dtype=torch.int32).view(num_seqs, pages),
        config.head_dim**-0.5,
    )
    row_bytes = 2 * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    return work, num_seqs * context * row_bytes


def _together(work: Callable[[], object], reads: Callable[[], object]) -> Together | None:
    """Repeat the shorter of the two until both take as long, then run them at once."""
    threads = torch.get_num_threads()
    if threads < 2:
        return None
    work_s, reads_s = seconds_of(work), seconds_of(reads)
    works, many = max(round(0.3 / work_s), 1), max(round(0.3 / reads_s), 1)

    def half(task: Callable[[], object], times: int) -> None:
        torch.set_num_threads(threads // 2)  # of this thread alone
        with torch.inference_mode():
            for _ in range(times):
                task()

    with ThreadPoolExecutor(2) as pool:

        def both() -> None:
            for future in [pool.submit(half, work, works), pool.submit(half, reads, many)]:
                future.result()

        both_s = seconds_of(both)
    torch.set_num_threads(threads)  # threads to come take what was set last, wherever
    return Together(works * work_s, many * reads_s, both_s)
