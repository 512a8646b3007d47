"""Paged attention on the CPU: the C++ kernel where it compiles, plain torch where it does not.

A step is planned once and run for each layer. `attention.cpp` computes, `attention_binding.py`
calls it, `attention_reference.py` says the same in torch, `kv_cache.py` has the layout. Knows
nothing of requests, prefix caches or who owns a page.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from blendrun.errors import InputError
from blendrun.kernels.cpu import attention_binding as binding
from blendrun.kernels.cpu import attention_checks as checks
from blendrun.kernels.cpu import attention_reference as reference
from blendrun.kernels.cpu.kv_cache import KvShape, alloc_kv_cache
from blendrun.kernels.cpu.library import SUFFIX, Backend, wanted_backend
from blendrun.kernels.cpu.rotary import RotaryWrites
from blendrun.kernels.cpu.shared_prefixes import COST_LEN, SharedPrefixes

_MIN_HEAD_DIM = 16  # the widest vector of float32


class CpuAttention:
    """KV cache operations and attention on the CPU. Holds no state but its choice of backend.

    `engine.paged_attention.PagedAttention` says what of it a step needs.

    Args:
        force: "cpp" or "torch"; None takes $BLENDRUN_CPU_KERNELS if set, else C++ where it
            compiles, else torch.

    Raises:
        InputError: C++ was asked for and cannot be built, or the variable names no backend.
    """

    prefix_cost_len: ClassVar[int] = COST_LEN  # see `find_shared_prefixes`

    def __init__(self, force: Backend | None = None) -> None:
        wanted = force or wanted_backend()
        self._library: ctypes.CDLL | None = None
        self._reason = "plain torch was asked for"
        if wanted != "torch":
            built = binding.attention_library()
            self._library, self._reason = built.library, built.reason
        if wanted == "cpp" and self._library is None:
            raise InputError(self._reason, "install g++ or clang++, or set CXX to a C++ compiler")

    @property
    def backend(self) -> Backend:
        """Which implementation runs (with head_dim 8 and with other dtypes it is always torch)."""
        return "torch" if self._library is None else "cpp"

    def has_kernel(self, head_dim: int) -> bool:
        """Whether heads of that size run in C++, in float32 and bfloat16."""
        return self._library is not None and head_dim >= _MIN_HEAD_DIM

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
        return alloc_kv_cache(num_layers, num_pages, page_size, num_kv_heads, head_dim, dtype)

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
        checks.check_rows(k, k_cache)
        checks.check_rows(v, k_cache)
        function = self._function("write_rows", k_cache)
        if function is None:
            reference.write_kv(k, v, k_cache, v_cache, token_idx, slots)
        elif slots.numel() > 0:
            rows = token_idx.to(torch.int32).contiguous()
            function(
                binding.rows_call(k, v, k_cache, v_cache, rows, slots.to(torch.int64).contiguous())
            )

    def read_kv(self, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [W, Hkv, D] of slots int64 [W] of one layer. For tests and checks."""
        function = self._function("read_rows", k_cache)
        if function is None:
            return reference.read_kv(k_cache, v_cache, slots)
        shape = KvShape.of(k_cache)
        size = (slots.numel(), shape.num_kv_heads, shape.head_dim)
        k, v = torch.empty(size, dtype=k_cache.dtype), torch.empty(size, dtype=k_cache.dtype)
        function(
            binding.rows_call(k, v, k_cache, v_cache, None, slots.to(torch.int64).contiguous())
        )
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

    def plan_writes(self, token_idx: Tensor, slots: Tensor) -> RotaryWrites:
        """Where K and V of a step's tokens go, the same for all layers; see `RotaryWrites`."""
        return RotaryWrites(token_idx, slots)

    def plan(
        self,
        k_cache: Tensor,
        num_heads: int,
        q_indptr: Tensor,
        context_len: Tensor,
        page_table: Tensor,
        scale: float,
        shared: SharedPrefixes | None = None,
        *,
        may_split: bool = True,
        part: int = 0,
    ) -> "AttentionPlan":
        """Causal attention of each sequence's last tokens over its pages, the same for all layers.

        Args:
            k_cache: any layer of `alloc_kv_cache`, for its shape and dtype.
            num_heads: Hq, of q.
            q_indptr: int32 [S + 1], from 0 to T: sequence s has these rows of q, the last ones of
                its context: row i of n sees the first context_len[s] - n + i + 1 tokens.
            context_len: int32 [S], tokens, the query rows included.
            page_table: int32 [S, max_pages], page of each page_size tokens of the context;
                entries behind the context are not read.
            scale: multiplies q . k before the natural exponential; positive.
            shared: `find_shared_prefixes` of these very sequences and pages. Says how to read,
                not what to compute: K and V of a shared prefix once for all its sharers.
            may_split: long contexts of few rows may be cut in parts, for more threads. Without,
                the kernel gives a row the same bits whatever other rows of its sequence are there.
            part: has no effect: any number of plans can be run.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        del part
        checks.check_step(k_cache, num_heads, q_indptr, context_len, page_table, scale)
        if shared is not None and len(shared.order) != context_len.numel():
            raise ValueError("the shared prefixes are those of other sequences")
        indptr, lens, pages = (
            t.to(torch.int32).contiguous() for t in (q_indptr, context_len, page_table)
        )
        planned = None
        if self._library is not None and self._computes(k_cache):
            planned = binding.CppPlan(
                self._library, k_cache, num_heads, indptr, lens, pages, shared, scale, may_split
            )
        num_tokens = int(q_indptr[-1]) if len(q_indptr) else 0
        q_shape = torch.Size((num_tokens, num_heads, KvShape.of(k_cache).head_dim))
        return AttentionPlan(
            q_shape, indptr, lens, pages, scale, planned, k_cache.shape, k_cache.dtype
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
        shared: SharedPrefixes | None = None,
        *,
        may_split: bool = True,
    ) -> Tensor:
        """`plan` and `AttentionPlan.run` of one layer."""
        step = self.plan(
            k_cache,
            q.shape[1],
            q_indptr,
            context_len,
            page_table,
            scale,
            shared,
            may_split=may_split,
        )
        return step.run(q, k_cache, v_cache, out)

    def _computes(self, cache: Tensor) -> bool:
        """Whether the compiled kernel takes this cache; else plain torch."""
        wide = KvShape.of(cache).head_dim >= _MIN_HEAD_DIM
        return wide and cache.dtype in SUFFIX and cache.device.type == "cpu"

    def _function(self, name: str, cache: Tensor) -> "Callable[[ctypes.Structure], None] | None":
        """The compiled function for this cache, or None: plain torch."""
        if self._library is None or not self._computes(cache):
            return None
        function = getattr(self._library, f"blendrun_{name}_{SUFFIX[cache.dtype]}")
        return lambda call: function(ctypes.byref(call))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class AttentionPlan:
    """The attention of one step, to be run for each layer."""

    q_shape: torch.Size  # [T, Hq, D]
    q_indptr: Tensor  # int32 [S + 1]
    context_len: Tensor  # int32 [S]
    page_table: Tensor  # int32 [S, max_pages]
    scale: float
    planned: binding.CppPlan | None  # None: plain torch
    _cache_shape: torch.Size
    _dtype: torch.dtype

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor | None = None) -> Tensor:
        """Attention of one layer.

        Args:
            q: [T, Hq, D] in the cache's dtype; any strides but the last, which is 1.
            k_cache, v_cache: one layer; K and V of every token in a context are written.
            out: [T, Hq, D] to write into, contiguous; a new tensor if None.

        Returns:
            [T, Hq, D], `out` if it was given. To the last bit, a sequence's values depend on its
            own row of the arguments alone, not on threads, and with shared prefixes on where
            those are cut.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        result = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        if q.shape != self.q_shape or q.dtype != self._dtype or q.stride(-1) != 1:
            wanted = f"{self._dtype} {list(self.q_shape)}"
            raise ValueError(f"q must be {wanted} with a contiguous last dim")
        if k_cache.shape != self._cache_shape or k_cache.dtype != self._dtype:
            raise ValueError("the cache is not like the one of the plan")
        if out is not None:
            checks.check_out(q, out)
        if self.planned is not None:
            self.planned.run(q, k_cache, v_cache, result)
            return result
        index = (self.q_indptr, self.context_len, self.page_table)
        return reference.paged_attention(q, k_cache, v_cache, *index, self.scale, result)


def backend_reason() -> str:
    """Why a `CpuAttention()` made now would take the backend that it takes."""
    return CpuAttention().backend_reason()
