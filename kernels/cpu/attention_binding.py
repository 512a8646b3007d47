"""How Python calls `attention.cpp`: its library, its structures, tensors into pointers and strides.

Checks nothing: a wrong shape here is a crash. `attention.py` checks first.
"""

import ctypes
import weakref

import torch
from torch import Tensor

from blendrun.kernels.cpu import build
from blendrun.kernels.cpu.kv_cache import KvShape
from blendrun.kernels.cpu.library import library
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes

_INDEX = ("q_indptr", "context_len", "page_table")
_COLUMNS = ("order", "group", "first", "last", "begin", "end", "parent")


class AttentionCall(ctypes.Structure):
    """`AttentionCall` in attention.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "out", "k_cache", "v_cache")),
        *((name, ctypes.c_int64) for name in ("q_row_stride", "q_head_stride")),
        *((name, ctypes.c_void_p) for name in (*_INDEX, *_COLUMNS)),
        ("num_groups", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("num_seqs", "max_pages")),
        *((name, ctypes.c_int64) for name in ("num_q_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("page_size", "num_threads")),
        *((name, ctypes.c_int64) for name in ("is_bf16", "may_split")),
        ("scale", ctypes.c_float),
    )


class LayerAttention(ctypes.Structure):
    """`LayerAttention` in attention.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("plan", "q", "out", "k_cache", "v_cache")),
        *((name, ctypes.c_int64) for name in ("q_row_stride", "q_head_stride")),
    )


class RowsCall(ctypes.Structure):
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


def attention_library() -> build.Built:
    """The compiled kernel, or why there is none; the reason tells the instruction set."""
    built = library("attention")
    if built.library is None:
        return built
    describe = built.library.blendrun_instruction_set
    describe.restype = ctypes.c_char_p
    threads = "" if built.library.blendrun_has_threads() else ", one thread (no OpenMP)"
    return build.Built(built.library, f"{built.reason} for {describe().decode()}{threads}")


class CppPlan:
    """A planned `AttentionCall`: one step, any layer. Checks nothing."""

    def __init__(
        self,
        library: ctypes.CDLL,
        k_cache: Tensor,
        num_heads: int,
        q_indptr: Tensor,
        context_len: Tensor,
        page_table: Tensor,
        shared: SharedPrefixes | None,
        scale: float,
        may_split: bool,
    ) -> None:
        shape = KvShape.of(k_cache)
        columns = () if shared is None else shared.columns()
        self._kept = (q_indptr, context_len, page_table)  # C++ has their pointers …
        self._columns = columns  # … and those of these
        call = AttentionCall(
            **{name: kept.data_ptr() for name, kept in zip(_INDEX, self._kept, strict=False)},
            **{name: kept.ctypes.data for name, kept in zip(_COLUMNS, columns, strict=False)},
            num_groups=0 if shared is None else shared.num_groups,
            num_seqs=page_table.shape[0],
            max_pages=page_table.shape[1],
            num_q_heads=num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            page_size=shape.page_size,
            num_threads=torch.get_num_threads(),
            is_bf16=k_cache.dtype == torch.bfloat16,
            may_split=may_split,
            scale=scale,
        )
        make, free = library.blendrun_plan_attention, library.blendrun_free_attention_plan
        make.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        self.address = int(make(ctypes.byref(call)))  # of the plan, while this lives
        self._run = library.blendrun_run_attention
        weakref.finalize(self, free, self.address)

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor) -> None:
        """Fills `out` with the attention of `q`, both [T, Hq, D]."""
        row, head, _ = q.stride()
        caches = (k_cache.data_ptr(), v_cache.data_ptr())
        layer = LayerAttention(self.address, q.data_ptr(), out.data_ptr(), *caches, row, head)
        self._run(ctypes.byref(layer))


def rows_call(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor | None, slots: Tensor
) -> RowsCall:
    """Tensors of `write_kv` or `read_kv` as C++ takes them; `rows` None: row w for slot w."""
    shape = KvShape.of(k_cache)
    return RowsCall(
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
