"""Speed of CPU paged attention: milliseconds, GFLOP/s and GB/s for decode, prefill and mixtures.

    python benchmarks/bench_attention.py [--dtype bfloat16|float32] [--repeats N]

Counts 4 * Hq * D flop per (query, visible token), and the K and V bytes that the queries need
(each query block reads its context once; sharers read a prefix "at once" one time). Prints a
table, then one JSON line.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes, find_shared_prefixes

PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Case:
    """Equal sequences with `num_queries` last rows each; `num_decode` more have one row."""

    name: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    num_prefill: int
    num_queries: int
    num_decode: int
    context_len: int
    shared_len: int = 0  # tokens at the beginning that are the same pages for all
    at_once: bool = False  # these are read once for all

    def query_lens(self) -> list[int]:
        return [self.num_queries] * self.num_prefill + [1] * self.num_decode

    def visible_tokens(self) -> int:
        """Sum over query rows of the tokens that each sees."""
        hidden = self.num_queries * (self.num_queries - 1) // 2
        prefill = self.num_queries * self.context_len - hidden
        return self.num_prefill * prefill + self.num_decode * self.context_len

    def gflop(self) -> float:
        return 4 * self.num_q_heads * self.head_dim * self.visible_tokens() / 1e9

    def gbyte(self, itemsize: int) -> float:
        num_seqs = self.num_prefill + self.num_decode
        tokens = num_seqs * self.context_len
        if self.at_once:
            tokens -= (num_seqs - 1) * self.shared_len
        return 2 * self.num_kv_heads * self.head_dim * itemsize * tokens / 1e9


CASES = (
    Case("decode 400 x 1000", 9, 3, 64, 0, 0, 400, 1000),
    Case("decode 100 x 2000", 9, 3, 64, 0, 0, 100, 2000),
    Case("decode 1 x 30000", 9, 3, 64, 0, 0, 1, 30000),
    Case("decode 64 x 1000, 32/8 x 128", 32, 8, 128, 0, 0, 64, 1000),
    Case("prefill 2048", 9, 3, 64, 1, 2048, 0, 2048),
    Case("prefill 512 of 4096", 9, 3, 64, 1, 512, 0, 4096),
    Case("prefill 1024, 32/8 x 128", 32, 8, 128, 1, 1024, 0, 1024),
    Case("prefill 1024 + decode 300 x 1024", 9, 3, 64, 1, 1024, 300, 1024),
    *(
        Case(f"{name}, {how}", *sizes, at_once=how == "at once")
        for name, *sizes in (
            ("decode 200 x 1100, 1024 shared", 9, 3, 64, 0, 0, 200, 1100, 1024),
            ("decode 32 x 4200, 4096 shared", 9, 3, 64, 0, 0, 32, 4200, 4096),
            ("decode 64 x 1100, 1024 shared, 8/8 x 128", 8, 8, 128, 0, 0, 64, 1100, 1024),
            ("decode 64 x 4200, 4096 shared, 32/8 x 128", 32, 8, 128, 0, 0, 64, 4200, 4096),
            ("prefill 64 x 16 of 1040, 1024 shared", 9, 3, 64, 64, 16, 0, 1040, 1024),
        )
        for how in ("each", "at once")
    ),
)


def measure(case: Case, dtype: torch.dtype, repeats: int) -> dict[str, float | str]:
    """Best of `repeats` calls (other work on the machine only adds), pages in random order."""
    attention = CpuAttention()
    lens = case.query_lens()
    pages_each = -(-case.context_len // PAGE_SIZE)
    num_pages = pages_each * len(lens)
    k_cache, v_cache = attention.alloc_kv_cache(
        1, num_pages, PAGE_SIZE, case.num_kv_heads, case.head_dim, dtype
    )
    k_cache.normal_()
    v_cache.normal_()
    table = torch.randperm(num_pages, dtype=torch.int32).view(len(lens), pages_each)
    table[:, : case.shared_len // PAGE_SIZE] = table[0, : case.shared_len // PAGE_SIZE]
    indptr = torch.tensor([0, *lens], dtype=torch.int32).cumsum(0).to(torch.int32)
    contexts = torch.full((len(lens),), case.context_len, dtype=torch.int32)
    q = torch.randn(sum(lens), case.num_q_heads, case.head_dim).to(dtype)
    args = (q, k_cache[0], v_cache[0], indptr, contexts, table, case.head_dim**-0.5)
    shared = _all_shared(case, table) if case.at_once else None
    call = functools.partial(attention.paged_attention, *args, shared=shared)
    call()
    elapsed_s = min(_timed(call, repeats))
    return {
        "case": case.name,
        "ms": elapsed_s * 1e3,
        "gflops": case.gflop() / elapsed_s,
        "gbytes_per_s": case.gbyte(dtype.itemsize) / elapsed_s,
    }


def _all_shared(case: Case, table: torch.Tensor) -> SharedPrefixes | None:
    """What the table shares, whether it pays or not."""
    lens = np.array(case.query_lens(), np.int32)
    order, contexts = np.arange(len(lens), dtype=np.int32), np.full_like(lens, case.context_len)
    heads_per_kv = case.num_q_heads // case.num_kv_heads
    return find_shared_prefixes(
        order, table.numpy(), lens, contexts, PAGE_SIZE, heads_per_kv, cost_len=0
    )


def _timed(call: Callable[[], object], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        start_s = time.perf_counter()
        call()
        yield time.perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{CpuAttention().backend_reason()}; {torch.get_num_threads()} threads; {options.dtype}")
    print(f"{'case':50} {'ms':>9} {'GFLOP/s':>9} {'GB/s':>7}")
    rows = []
    for case in CASES:
        row = measure(case, getattr(torch, options.dtype), options.repeats)
        rows.append(row)
        print(
            f"{row['case']:50} {row['ms']:9.2f} {row['gflops']:9.1f} {row['gbytes_per_s']:7.1f}",
            flush=True,
        )
    print(json.dumps({"dtype": options.dtype, "rows": rows}))


if __name__ == "__main__":
    main()
