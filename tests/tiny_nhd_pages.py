"""Random sequences in paged caches of FlashInfer's NHD layout, for the Triton kernels."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blendrun.kernels.triton.page_index import DevicePageIndex
from tiny_pages import dense_attention

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.bfloat16]  # of whole grids; the interpreter is slow


@dataclass
class Problem:
    """Random sequences in a paged cache, unused slots full of NaN, and the same K and V dense."""

    q: Tensor  # [T, Hq, D]
    k_cache: Tensor  # [P, page_size, Hkv, D]
    v_cache: Tensor
    index: DevicePageIndex
    k: list[Tensor]  # [context, Hkv, D] of each sequence
    v: list[Tensor]
    scale: float

    def expected(self) -> Tensor:
        """Causal attention in float64; zeros for rows that see nothing."""
        bounds = self.index.qo_indptr.tolist()
        parts = []
        for s, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            q = self.q[bounds[s] : bounds[s + 1]]
            blind = max(len(q) - len(k), 0)
            seeing = dense_attention(q[blind:].cpu(), k, v, self.scale)
            parts += [torch.zeros(q[:blind].shape, dtype=torch.float64), seeing]
        return torch.cat(parts)


def nhd_problem(
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    page_size: int,
    lens: Sequence[tuple[int, int]],
) -> Problem:
    """Heads are query heads, KV heads and head_dim; lens (query rows, context)."""
    num_q_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(0)
    page_counts = [-(-context // page_size) for _, context in lens]
    num_pages = sum(page_counts) + 3
    free = torch.randperm(num_pages)
    shape = (num_pages, page_size, num_kv_heads, head_dim)
    k_cache, v_cache = (torch.full(shape, math.nan, dtype=dtype) for _ in "kv")
    ks, vs, used = [], [], []
    for (_, context), count in zip(lens, page_counts, strict=True):
        pages, free = free[:count], free[count:]
        tokens = torch.arange(context)
        place = (pages[tokens // page_size], tokens % page_size)
        for cache, dense in ((k_cache, ks), (v_cache, vs)):
            rows = torch.randn(context, num_kv_heads, head_dim).to(dtype)
            cache[place] = rows
            dense.append(rows)
        used.append(pages)
    rows = [count for count, _ in lens]
    last = [(context - 1) % page_size + 1 if context else 0 for _, context in lens]
    index = page_index(rows, [pages.tolist() for pages in used], last)
    q = torch.randn(sum(rows), num_q_heads, head_dim).to(dtype)
    on_device = (t.to(DEVICE) for t in (q, k_cache, v_cache))
    return Problem(*on_device, index, ks, vs, head_dim**-0.5)


def page_index(
    num_rows: Sequence[int], pages: Sequence[Sequence[int]], last_page_len: Sequence[int]
) -> DevicePageIndex:
    """Of sequences with so many query rows each, those pages, and tokens in the last of them."""
    counts = ([0, *num_rows], [0, *(len(own) for own in pages)])
    bounds = (torch.tensor(c).cumsum(0).to(torch.int32) for c in counts)
    flat = torch.tensor([page for own in pages for page in own], dtype=torch.int32, device=DEVICE)
    return DevicePageIndex(*bounds, flat, torch.tensor(last_page_len, dtype=torch.int32))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Worst of all rows and heads, of their norms; rows of zeros must be zeros."""
    exact = expected.double().cpu()
    error = (actual.double().cpu() - exact).norm(dim=-1)
    return float((error / exact.norm(dim=-1).clamp(min=1e-30)).nan_to_num(math.inf).amax())
