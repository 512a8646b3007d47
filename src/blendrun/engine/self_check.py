"""A short check of a device's kernels at their first use: another path must compute the same.

Random sequences of the model's shape: prefill chunks, decodes, some that share prefixes, and
decodes out of a graph, where steps are captured. Takes about two seconds, without the time in
which a library compiles its kernels.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.compute import Compute
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.elementwise import PLAIN, Elementwise
from blendrun.engine.graphs import Capture
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.rope import cos_sin
from blendrun.engine.token_check import differing_frac
from blendrun.errors import BackendError
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.shared_prefixes import find_shared_prefixes

# (rows of q, context, whole pages shared with the first sequence), 16 tokens to a page
_PAGE_SIZE = 16
_SEQUENCES = (
    *((1, 161, 9), (1, 150, 9), (1, 147, 6), (3, 130, 6), (1, 129, 6)),
    *((1, 1, 0), (1, 16, 0), (1, 17, 0), (1, 1000, 0)),
    *((40, 40, 0), (7, 300, 0), (17, 33, 0)),
)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# values a rounding away from the middle of two of float8 go either way, by an eighth of themselves
_FP8_TOLERANCE = 0.15


@torch.inference_mode()
def check_compute(
    compute: Compute,
    others: Mapping[str, PagedAttention],
    config: DecoderConfig,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
) -> None:
    """Hold `compute` against `others`, by name, on the same device; all keep KV in `kv_dtype`.

    Raises:
        BackendError: they differ, or a kernel fails; names the path.
    """
    name = compute.attention.backend
    problem, tolerance = _Problem(config, dtype, compute.device), _TOLERANCE[dtype]
    if kv_dtype is not None:
        tolerance = max(tolerance, _FP8_TOLERANCE)
    alone, shared = (problem.attention(name, compute.attention, shares) for shares in (False, True))
    for other, attention in others.items():
        expected = problem.attention(other, attention, False)
        for what, found in (("", alone), (" over shared prefixes", shared)):
            words = f"{name} attention{what} and {other}"
            _compare(name, words, found, expected, tolerance)
    if compute.capture is not None:
        replayed = problem.replayed(name, compute.attention, compute.capture)
        words = f"replayed {name} decodes and those that are run"
        _compare(name, words, replayed, alone[problem.decode_rows()], tolerance)
    rows = problem.elementwise(name, compute.elementwise)
    for what, expected in problem.elementwise("plain torch", PLAIN).items():
        _compare(name, f"{what} and plain torch", rows[what], expected, _TOLERANCE[dtype])
    with _refusing(name):
        differing = differing_frac(compute.tokens, config.vocab_size, dtype, compute.device)
    if differing:
        raise _refusal(name, f"best tokens and draws: {differing:.0%} are not the CPU's")


def _compare(path: str, what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (found.double() - expected.double()).norm(dim=-1) / expected.double().norm(dim=-1)
    worst = float(error.max())
    if not worst <= tolerance:  # also where it is not a number
        raise _refusal(path, f"{what} differ by {worst:.1e}, more than {tolerance:.0e}")


def _refusal(path: str, problem: str) -> BackendError:
    return BackendError(
        f"the self-check of the {path} path on this device failed: {problem}",
        "take another --attention, or --device cpu",
    )


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """A kernel that fails is a refusal."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        raise _refusal(path, f"it fails: {error}") from error


class _Problem:
    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._random = torch.Generator().manual_seed(0)
        rows, context, _ = np.array(_SEQUENCES, np.int32).T
        self._rows, self._context = rows, context
        self._page_table, self._slot = _pages()
        num_tokens = len(self._slot)  # K and V of all that is read, each page once
        head_dim = config.head_dim
        frequencies = 1e4 ** (-torch.arange(0, head_dim, 2) / head_dim)
        cos, sin = cos_sin(torch.arange(num_tokens) % 4096, frequencies, 1.0)
        norms = [self._normal(head_dim) + 1 if config.qk_norm else None for _ in "qk"]
        angles = (cos.to(device), sin.to(device))
        self._rotation = Rotation(*angles, norms[0], norms[1], config.rms_eps)
        self._heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        self._written = self._normal(num_tokens, sum(self._heads), head_dim)
        self._q = self._normal(int(rows.sum()), config.num_heads, head_dim)

    def _normal(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self._random)
        return values.to(self._dtype).to(self._device)

    def attention(self, name: str, attention: PagedAttention, shares: bool) -> Tensor:
        """[T, Hq * D] of one layer, after its K and V were turned and written."""
        with _refusing(name):
            return self._attention(attention, shares)

    def replayed(self, name: str, attention: PagedAttention, capture: Capture) -> Tensor:
        """[S, Hq * D] of all decodes, captured in reverse order and replayed in theirs."""
        with _refusing(name):
            return self._replayed(attention, capture)

    def elementwise(self, name: str, kernels: Elementwise) -> dict[str, Tensor]:
        """By what it is, rows of values."""
        with _refusing(name):
            return self._elementwise(kernels)

    def decode_rows(self) -> Tensor:
        """int64 [S], of what `attention` gives."""
        first = np.cumsum(self._rows) - self._rows
        return torch.from_numpy(first[self._rows == 1]).to(self._device)

    def _replayed(self, attention: PagedAttention, capture: Capture) -> Tensor:
        k_cache, v_cache, _ = self._caches(attention)
        decodes = np.flatnonzero(self._rows == 1)
        q, scale = self._q[self.decode_rows()], self._config.head_dim**-0.5
        static = capture.attention.static_decodes(
            k_cache, self._config.num_heads, len(decodes), scale
        )

        def move_to(order: np.ndarray) -> None:
            slots = np.arange(len(order))  # nothing is written
            static.move_to(self._context[order], self._page_table[order], slots)

        def work() -> Tensor:
            return static.reads.run(q, k_cache, v_cache)

        move_to(decodes[::-1])
        work()
        graph = capture.maker(work)
        move_to(decodes)
        graph.replay()
        return graph.made.flatten(1).clone()

    def _caches(self, attention: PagedAttention) -> tuple[Tensor, Tensor, Tensor]:
        """Of one layer, with all K and V written, and q as it was turned then."""
        config = self._config
        caches = attention.alloc_kv_cache(
            1,
            int(self._page_table.max()) + 1,
            _PAGE_SIZE,
            config.num_kv_heads,
            config.head_dim,
            self._dtype,
        )
        # memory of an earlier check may hold the right K and V already
        k_cache, v_cache = (cache[0].zero_() for cache in caches)
        tokens = torch.arange(len(self._slot), dtype=torch.int32)
        writes = attention.plan_writes(tokens, torch.from_numpy(self._slot))
        q, k, v = torch.split(self._written.clone(), self._heads, dim=1)  # as in a decoder
        writes.run(q, k, v, self._rotation, k_cache, v_cache)
        return k_cache, v_cache, q

    def _attention(self, attention: PagedAttention, shares: bool) -> Tensor:
        k_cache, v_cache, q = self._caches(attention)
        config = self._config
        shared = None
        if shares:
            shared = find_shared_prefixes(
                np.arange(len(self._rows), dtype=np.int32),
                self._page_table,
                self._rows,
                self._context,
                _PAGE_SIZE,
                config.num_heads // config.num_kv_heads,
                cost_len=0,
            )
        plan = attention.plan(
            k_cache,
            config.num_heads,
            torch.from_numpy(np.concatenate([[0], np.cumsum(self._rows)]).astype(np.int32)),
            torch.from_numpy(self._context),
            torch.from_numpy(self._page_table),
            config.head_dim**-0.5,
            shared,
        )
        # what was turned is read, too
        turned = q.flatten(1)[: len(self._q)]
        return torch.cat([plan.run(self._q.clone(), k_cache, v_cache).flatten(1), turned])

    def _elementwise(self, kernels: Elementwise) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(1)
        hidden, branch, gate_up = (
            torch.randn(shape, generator=random).to(self._dtype).to(self._device)
            for shape in ((9, 256), (9, 256), (9, 512))
        )
        weight = torch.linspace(0.5, 1.5, 256).to(self._dtype).to(self._device)
        normed = kernels.add_rms_norm(hidden.clone(), None, weight, 1e-5)
        added = hidden.clone()
        both = kernels.add_rms_norm(added, branch.clone(), weight, 1e-5)
        return {
            "the norms": torch.cat([normed, both, added]),
            "the activations": kernels.silu_mul(gate_up),
        }


def _pages() -> tuple[np.ndarray, np.ndarray]:
    """Page table [S, max_pages] of the sequences, pages in random order; all their slots, [W]."""
    counts = [-(-context // _PAGE_SIZE) for _, context, _ in _SEQUENCES]
    free = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
    table = np.zeros((len(counts), max(counts)), np.int32)
    slots, start = [], 0
    for row, (count, (_, _, num_shared)) in enumerate(zip(counts, _SEQUENCES, strict=True)):
        own = num_shared if row else 0
        table[row, :own] = table[0, :own]
        table[row, own:count] = free[start + own : start + count]
        written = table[row, own:count]
        slots.append(
            (written[:, None].astype(np.int64) * _PAGE_SIZE + np.arange(_PAGE_SIZE)).ravel()
        )
        start += count
    return table, np.concatenate(slots)
