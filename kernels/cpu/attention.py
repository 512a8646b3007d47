"""Paged attention on the CPU: the C++ kernel where it compiles, plain torch where it does not.

`attention.cpp` computes, `attention_reference.py` says the same in torch, `kv_cache.py` has the
layout. Knows nothing of requests, prefix caches or who owns a page.
"""

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from blendrun.errors import InputError
from blendrun.kernels.cpu import attention_reference as reference
from blendrun.kernels.cpu import build
from blendrun.kernels.cpu.kv_cache import KvShape, alloc_kv_cache

Backend = Literal["cpp", "torch"]
BACKEND_VARIABLE = "BLENDRUN_CPU_ATTENTION"
SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("attention.cpp", "attention_tile.h", "kv_cache.h", "simd.h")
)
_SUFFIX = {torch.bfloat16: "bf16", torch.float32: "f32"}
_MIN_HEAD_DIM = 16  # the widest vector of float32


class _AttentionCall(ctypes.Structure):
    """`AttentionCall` in attention.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "out", "k_cache", "v_cache")),
        *((name, ctypes.c_void_p) for name in ("q_indptr", "context_len", "page_table")),
        *((name, ctypes.c_int64) for name in ("num_seqs", "max_pages")),
        *((name, ctypes.c_int64) for name in ("q_row_stride", "q_head_stride")),
        *((name, ctypes.c_int64) for name in ("num_q_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("page_size", "num_threads")),
        ("scale", ctypes.c_float),
    )


class _RowsCall(ctypes.Structure):
    """`RowsCall` in attention.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "k_cache", "v_cache")),
        *((name, ctypes.c_void_p) for name in ("row_idx", "slots")),
        ("num_slots", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("k_row_stride", "k_head_stride")),
        *((name, ctypes.c_int64) for name in ("v_row_stride", "v_head_stride")),
        *((name, ctypes.c_int64) for name in ("num_kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("page_size", "num_threads")),
    )


class CpuAttention:
    """KV cache operations and attention on the CPU. Holds no state but its choice of backend.

    Args:
        force: "cpp" or "torch"; None takes $BLENDRUN_CPU_ATTENTION if set, else C++ where it
            compiles, else torch.

    Raises:
        InputError: C++ was asked for and cannot be built, or the variable names no backend.
    """

    def __init__(self, force: Backend | None = None) -> None:
        wanted = force or os.environ.get(BACKEND_VARIABLE) or None
        if wanted not in (None, "cpp", "torch"):
            raise InputError(f"{BACKEND_VARIABLE} must be cpp or torch, not {wanted!r}")
        self._library: ctypes.CDLL | None = None
        self._reason = "plain torch was asked for"
        if wanted != "torch":
            built = _built()
            self._library, self._reason = built.library, built.reason
        if wanted == "cpp" and self._library is None:
            raise InputError(self._reason, "install g++ or clang++, or set CXX to a C++ compiler")

    @property
    def backend(self) -> Backend:
        """Which implementation runs (with head_dim 8 and with other dtypes it is always torch)."""
        return "torch" if self._library is None else "cpp"

    def backend_reason(self) -> str:
        """Why, in one line."""
        return self._reason

    def alloc_kv_cache(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """K and V caches, leading dims [num_layers, num_pages]; memory is not touched until used.

        The inner layout belongs to the kernels (`kv_cache.py`). page_size in tokens.

        Raises:
            ValueError: head_dim is not a multiple of 8, or a size is not positive.
        """
        caches = alloc_kv_cache(num_layers, num_pages, page_size, num_kv_heads, head_dim, dtype)
        if self._library is not None:
            for cache in caches:
                self._library.blendrun_advise_huge_pages(
                    ctypes.c_void_p(cache.data_ptr()), ctypes.c_int64(cache.nbytes)
                )
        return caches

    def write_kv(
        self,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        token_idx: Tensor,
        slots: Tensor,
    ) -> None:
        """Writes token token_idx[w] of k, v into slots[w]; a token may go to several slots.

        Args:
            k, v: [T, Hkv, D] in the cache's dtype; any strides but the last, which is 1.
            k_cache, v_cache: one layer of `alloc_kv_cache`.
            token_idx: int32 [W], rows of k and v.
            slots: int64 [W], page * page_size + offset, all different.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        _check_rows(k, k_cache)
        _check_rows(v, k_cache)
        function = self._function("write_rows", k_cache)
        if function is None:
            reference.write_kv(k, v, k_cache, v_cache, token_idx, slots)
        elif slots.numel() > 0:
            rows = token_idx.to(torch.int32).contiguous()
            function(_rows_call(k, v, k_cache, v_cache, rows, slots.to(torch.int64).contiguous()))

    def read_kv(self, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [W, Hkv, D] of slots int64 [W] of one layer. For tests and checks."""
        function = self._function("read_rows", k_cache)
        if function is None:
            return reference.read_kv(k_cache, v_cache, slots)
        shape = KvShape.of(k_cache)
        size = (slots.numel(), shape.num_kv_heads, shape.head_dim)
        k, v = torch.empty(size, dtype=k_cache.dtype), torch.empty(size, dtype=k_cache.dtype)
        function(_rows_call(k, v, k_cache, v_cache, None, slots.to(torch.int64).contiguous()))
        return k, v

    def copy_pages(self, k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
        """Copies page src[i] onto page dst[i] in all layers.

        Args:
            k_cache, v_cache: all layers, as `alloc_kv_cache` gave them.
            src, dst: int32 [C]; no page is in both.

        Raises:
            ValueError: a page is in both.
        """
        if torch.isin(src, dst).any():
            raise ValueError("copy_pages: a page is both source and destination")
        if self._library is None:
            reference.copy_pages(k_cache, v_cache, src, dst)
            return
        src, dst = src.to(torch.int32).contiguous(), dst.to(torch.int32).contiguous()
        for cache in (k_cache, v_cache):
            self._library.blendrun_copy_pages(
                ctypes.c_void_p(cache.data_ptr()),
                *map(ctypes.c_int64, (cache.shape[0], cache.shape[1], cache[0, 0].nbytes)),
                *map(ctypes.c_void_p, (src.data_ptr(), dst.data_ptr())),
                *map(ctypes.c_int64, (src.numel(), torch.get_num_threads())),
            )

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        q_indptr: Tensor,
        context_len: Tensor,
        page_table: Tensor,
        scale: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of each sequence's last tokens over its pages.

        Args:
            q: [T, Hq, D] in the cache's dtype; any strides but the last, which is 1. Sequence s
                has rows q_indptr[s]:q_indptr[s + 1], the last ones of its context: row i of n
                sees the first context_len[s] - n + i + 1 tokens.
            k_cache, v_cache: one layer; K and V of every token in a context are written.
            q_indptr: int32 [S + 1], from 0 to T.
            context_len: int32 [S], tokens, the query rows included.
            page_table: int32 [S, max_pages], page of each page_size tokens of the context;
                entries behind the context are not read.
            scale: multiplies q . k before the natural exponential; positive.
            out: [T, Hq, D] to write into, contiguous; a new tensor if None.

        Returns:
            [T, Hq, D], `out` if it was given. A sequence's values depend neither on the other
            sequences of the call nor on the number of threads, to the last bit.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        result = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        _check_attention(q, k_cache, q_indptr, context_len, page_table, scale, result)
        function = self._function("paged_attention", k_cache)
        if function is None:
            return reference.paged_attention(
                q, k_cache, v_cache, q_indptr, context_len, page_table, scale, result
            )
        index = [t.to(torch.int32).contiguous() for t in (q_indptr, context_len, page_table)]
        shape = KvShape.of(k_cache)
        call = _AttentionCall(
            *(t.data_ptr() for t in (q, result, k_cache, v_cache, *index)),
            *page_table.shape,
            *q.stride()[:2],
            q.shape[1],
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            torch.get_num_threads(),
            scale,
        )
        function(call)
        return result

    def _function(self, name: str, cache: Tensor) -> "Callable[[ctypes.Structure], None] | None":
        """The compiled function for this cache, or None: plain torch."""
        suffix = _SUFFIX.get(cache.dtype)
        small = KvShape.of(cache).head_dim < _MIN_HEAD_DIM
        if self._library is None or suffix is None or small or cache.device.type != "cpu":
            return None
        function = getattr(self._library, f"blendrun_{name}_{suffix}")
        return lambda call: function(ctypes.byref(call))


def backend_reason() -> str:
    """Why a `CpuAttention()` made now would take the backend that it takes."""
    return CpuAttention().backend_reason()


@functools.cache
def _built() -> build.Built:
    built = build.load_library("attention", SOURCES)
    if built.library is None:
        return built
    describe = built.library.blendrun_instruction_set
    describe.restype = ctypes.c_char_p
    threads = "" if built.library.blendrun_has_threads() else ", one thread (no OpenMP)"
    return build.Built(built.library, f"{built.reason} for {describe().decode()}{threads}")


def _rows_call(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor | None, slots: Tensor
) -> _RowsCall:
    shape = KvShape.of(k_cache)
    return _RowsCall(
        *(t.data_ptr() for t in (k, v, k_cache, v_cache)),
        None if rows is None else rows.data_ptr(),
        slots.data_ptr(),
        slots.numel(),
        *k.stride()[:2],
        *v.stride()[:2],
        shape.num_kv_heads,
        shape.head_dim,
        shape.page_size,
        torch.get_num_threads(),
    )


def _check_rows(rows: Tensor, cache: Tensor) -> None:
    shape = KvShape.of(cache)
    wanted = (shape.num_kv_heads, shape.head_dim)
    if rows.dtype != cache.dtype or rows.shape[1:] != wanted or rows.stride(-1) != 1:
        raise ValueError(
            f"k and v must be {cache.dtype} [T, {wanted[0]}, {wanted[1]}] with a contiguous last "
            f"dim, not {rows.dtype} {list(rows.shape)} with strides {rows.stride()}"
        )


def _check_attention(
    q: Tensor,
    k_cache: Tensor,
    q_indptr: Tensor,
    context_len: Tensor,
    page_table: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    shape = KvShape.of(k_cache)
    num_seqs = context_len.numel()
    if q.dtype != k_cache.dtype or q.dim() != 3 or q.stride(-1) != 1:
        raise ValueError(f"q must be {k_cache.dtype} [T, Hq, D] with a contiguous last dim")
    if q.shape[2] != shape.head_dim or q.shape[1] % shape.num_kv_heads != 0:
        raise ValueError(f"q {list(q.shape)} does not fit a cache of {shape}")
    if out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous():
        raise ValueError("out must be contiguous, with the shape and dtype of q")
    if q_indptr.numel() != num_seqs + 1 or page_table.shape[:1] != (num_seqs,) or scale <= 0:
        raise ValueError("q_indptr, context_len and page_table disagree, or scale is not positive")
    num_queries = q_indptr.diff()
    capacity = page_table.shape[1] * shape.page_size
    if num_seqs and bool((context_len < num_queries).any() | (context_len > capacity).any()):
        raise ValueError("a context is shorter than its query rows or longer than its pages")
