"""Random sequences in paged caches, and what attention over them must give in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.kv_cache import KvShape
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes, find_shared_prefixes

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCE)
# (query rows, context): decode and chunks, around 8, 16 and 32, one tile (256), a split (1536).
MIXED = (
    *((1, context) for context in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257)),
    *((1, 1535), (1, 1537), (1, 2600), (5, 1600), (0, 0)),
    *((1, 1), (2, 2), (16, 16), (17, 17), (33, 300), (70, 70), (3, 40)),
)


@dataclass
class Problem:
    """Random sequences in a paged cache, unused slots full of NaN, and the same K and V dense."""

    q: Tensor
    k_cache: Tensor  # [1, num_pages, ...]
    v_cache: Tensor
    q_indptr: Tensor
    context_len: Tensor
    page_table: Tensor
    k: list[Tensor]  # [context, Hkv, D] of each sequence
    v: list[Tensor]
    scale: float

    def run(
        self,
        kernel: CpuAttention,
        out: Tensor | None = None,
        shared: SharedPrefixes | None = None,
        may_split: bool = True,
    ) -> Tensor:
        caches = (self.k_cache[0], self.v_cache[0])
        index = (self.q_indptr, self.context_len, self.page_table)
        return kernel.paged_attention(
            self.q, *caches, *index, self.scale, out, shared, may_split=may_split
        )

    def share(self, sequences: Sequence[int], num_tokens: int) -> None:
        """Lets the others begin with the first `num_tokens` of the first; whole pages."""
        owner, *others = sequences
        num_pages = num_tokens // KvShape.of(self.k_cache).page_size
        for s in others:
            self.page_table[s, :num_pages] = self.page_table[owner, :num_pages]
            self.k[s][:num_tokens] = self.k[owner][:num_tokens]
            self.v[s][:num_tokens] = self.v[owner][:num_tokens]

    def shared(self, order: Sequence[int] | None = None) -> SharedPrefixes | None:
        """All that is shared, whatever it costs."""
        shape = KvShape.of(self.k_cache)
        return find_shared_prefixes(
            np.array(range(len(self.k)) if order is None else order, np.int32),
            self.page_table.numpy(),
            self.q_indptr.diff().numpy(),
            self.context_len.numpy(),
            shape.page_size,
            self.q.shape[1] // shape.num_kv_heads,
            cost_len=0,
        )

    def expected(self) -> Tensor:
        bounds = self.q_indptr.tolist()
        parts = [
            dense_attention(self.q[bounds[s] : bounds[s + 1]], self.k[s], self.v[s], self.scale)
            for s in range(len(self.k))
        ]
        return torch.cat(parts)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention in float64, with K and V repeated for each query head."""
    num_rows, num_heads, _ = q.shape
    group = num_heads // k.shape[1]
    queries = q.double().transpose(0, 1)  # [Hq, n, D]
    keys, values = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    hidden = torch.ones(num_rows, len(k), dtype=torch.bool).triu(len(k) - num_rows + 1)
    scores = (queries @ keys.transpose(1, 2) * scale).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ values).transpose(0, 1)


def slots_of(pages: Tensor, context: int, page_size: int) -> Tensor:
    tokens = torch.arange(context)
    return pages.long()[tokens // page_size] * page_size + tokens % page_size


def paged_problem(
    kernel: CpuAttention,
    dtype: torch.dtype,
    heads: tuple[int, int, int] = (4, 2, 64),
    page_size: int = 16,
    lens: Sequence[tuple[int, int]] = MIXED,
) -> Problem:
    num_q_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(0)
    page_counts = [-(-context // page_size) for _, context in lens]
    num_pages = sum(page_counts) + 3
    k_cache, v_cache = kernel.alloc_kv_cache(1, num_pages, page_size, num_kv_heads, head_dim, dtype)
    k_cache.fill_(math.nan)
    v_cache.fill_(math.nan)
    free = torch.randperm(num_pages).to(torch.int32)
    page_table = torch.full((len(lens), max(page_counts) + 2), -1, dtype=torch.int32)
    ks, vs = [], []
    for s, (_, context) in enumerate(lens):
        page_table[s, : page_counts[s]], free = free[: page_counts[s]], free[page_counts[s] :]
        k, v = (torch.randn(context, num_kv_heads, head_dim).to(dtype) for _ in range(2))
        slots = slots_of(page_table[s], context, page_size)
        rows = torch.arange(context, dtype=torch.int32)
        kernel.write_kv(k, v, k_cache[0], v_cache[0], rows, slots)
        ks.append(k)
        vs.append(v)
    counts = torch.tensor([0] + [count for count, _ in lens])
    return Problem(
        q=torch.randn(int(counts.sum()), num_q_heads, head_dim).to(dtype),
        k_cache=k_cache,
        v_cache=v_cache,
        q_indptr=counts.cumsum(0).to(torch.int32),
        context_len=torch.tensor([context for _, context in lens], dtype=torch.int32),
        page_table=page_table,
        k=ks,
        v=vs,
        scale=head_dim**-0.5,
    )


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Each row and head within `tolerance` of its norm."""
    error = (actual.double() - expected).norm(dim=-1)
    worst = (error / expected.norm(dim=-1)).max().item()
    assert worst < tolerance, f"relative error {worst}"
