"""How fast attention is on a device: while prompts are read, for decodes, over shared prefixes.

Decodes at two context lengths tell apart what reading a token costs and what a sequence costs
whatever its length; with a prefix that many of them share, what a further sharer costs.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from blendrun.engine import stopwatch
from blendrun.engine.decoder import Decoder
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.stopwatch import seconds_of, wait_for
from blendrun.kernels.cpu.shared_prefixes import find_shared_prefixes

PAGE_SIZE = 16
PREFILL_TOKENS = 1024
CACHED_TOKENS = 256 * 1024  # of all sequences: more K and V than caches hold
LONG, SHORT = 1024, 128  # context of a decode
SHARERS = 32  # of a prefix
_CACHES = 3


@dataclass(frozen=True, slots=True)
class AttentionRates:
    read_bandwidth: float  # byte/s of K and V in decode attention
    prefill_flops: float  # FLOP/s of causal prefill attention
    shared_flops: float  # FLOP/s of decodes over a prefix that another one reads anyway


def measure_attention(decoder: Decoder, attention: PagedAttention) -> AttentionRates:
    """Measure one layer with the heads of `decoder`. The caller holds `torch.inference_mode`."""
    config, wait = decoder.config, wait_for(decoder.device)
    prefill = attention_call(decoder, attention, 1, PREFILL_TOKENS, PREFILL_TOKENS)
    # the causal half of 4 * width * n²
    prefill_flops = 2 * config.q_size * PREFILL_TOKENS**2 / seconds_of(prefill, wait)
    num_seqs = max(CACHED_TOKENS // LONG, SHARERS)

    def decode_s(context: int) -> float:
        """Of a sequence; the mean over caches, since where memory lies makes up to a fifth."""
        calls = (attention_call(decoder, attention, num_seqs, 1, context) for _ in range(_CACHES))
        seconds = [seconds_of(call, wait, stopwatch.MEASURE_S / _CACHES) for call in calls]
        return statistics.mean(seconds) / num_seqs

    token_s, sequence_s = _line(*((context, decode_s(context)) for context in (SHORT, LONG)))
    shared_s = seconds_of(
        attention_call(decoder, attention, num_seqs, 1, LONG + SHORT, sharers=SHARERS), wait
    )
    num_read = num_seqs * SHORT + num_seqs // SHARERS * LONG  # tokens, each once
    num_spared = (num_seqs - num_seqs // SHARERS) * LONG
    rest_s = shared_s - num_read * token_s - num_seqs * sequence_s
    row_bytes = 2 * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    # never faster than prefill attention, which does the same with more rows
    spared_s = max(rest_s / num_spared, 4 * config.q_size / prefill_flops)
    return AttentionRates(row_bytes / token_s, prefill_flops, 4 * config.q_size / spared_s)


def attention_call(
    decoder: Decoder,
    attention: PagedAttention,
    num_seqs: int,
    queries: int,
    context: int,
    sharers: int = 1,
) -> Callable[[], Tensor]:
    """Attention of one layer for equal sequences on pages in random order.

    With `sharers` above 1 each so many neighbours share the first LONG tokens of their contexts.
    """
    config = decoder.config
    pages = -(-context // PAGE_SIZE)
    k_cache, v_cache = attention.alloc_kv_cache(
        1, num_seqs * pages, PAGE_SIZE, config.num_kv_heads, config.head_dim, decoder.dtype
    )
    k_cache.normal_()
    v_cache.normal_()
    q = torch.randn(num_seqs * queries, config.num_heads, config.head_dim)
    q = q.to(decoder.device, decoder.dtype)
    page_table = torch.randperm(num_seqs * pages, dtype=torch.int32).view(num_seqs, pages)
    lengths = np.full(num_seqs, context, np.int32)
    shared = None
    if sharers > 1:
        leaders = torch.arange(num_seqs) // sharers * sharers
        page_table[:, : LONG // PAGE_SIZE] = page_table[leaders, : LONG // PAGE_SIZE]
        shared = find_shared_prefixes(
            np.arange(num_seqs, dtype=np.int32),
            page_table.numpy(),
            np.full(num_seqs, queries, np.int32),
            lengths,
            PAGE_SIZE,
            config.num_heads // config.num_kv_heads,
        )
    plan = attention.plan(  # once per step, so not part of a layer's time
        k_cache[0],
        config.num_heads,
        torch.arange(num_seqs + 1, dtype=torch.int32) * queries,
        torch.from_numpy(lengths),
        page_table,
        config.head_dim**-0.5,
        shared,
    )
    return partial(plan.run, q, k_cache[0], v_cache[0])


def _line(short: tuple[int, float], long: tuple[int, float]) -> tuple[float, float]:
    """Seconds of a token and of a sequence; through 0 where the short one tells less than that."""
    slope = (long[1] - short[1]) / (long[0] - short[0])
    least = long[1] / long[0]
    if slope <= 0 or slope > least:
        return least, 0.0
    return slope, long[1] - slope * long[0]
