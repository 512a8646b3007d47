"""How Python calls `attention.cpp`: its library, its structures, tensors into pointers and strides.

Checks nothing: a wrong shape here is a crash. `attention.py` checks first.
"""

import ctypes

import torch
from torch import Tensor

from blendrun.kernels.cpu import build
from blendrun.kernels.cpu.kv_cache import KvShape
from blendrun.kernels.cpu.library import library
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes


class AttentionCall(ctypes.Structure):
    """`AttentionCall` in attention.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "out", "k_cache", "v_cache")),
        *((name, ctypes.c_void_p) for name in ("q_indptr", "context_len", "page_table")),
        *((name, ctypes.c_void_p) for name in ("order", "group", "first", "last")),
        *((name, ctypes.c_void_p) for name in ("begin", "end", "parent")),
        ("num_groups", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("num_seqs", "max_pages")),
        *((name, ctypes.c_int64) for name in ("q_row_stride", "q_head_stride")),
        *((name, ctypes.c_int64) for name in ("num_q_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("page_size", "num_threads", "may_split")),
        ("scale", ctypes.c_float),
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


def attention_call(
    q: Tensor,
    out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_indptr: Tensor,
    context_len: Tensor,
    page_table: Tensor,
    shared: SharedPrefixes | None,
    scale: float,
    may_split: bool,
) -> AttentionCall:
    """Tensors of `paged_attention` as C++ takes them; the caller keeps them alive."""
    shape = KvShape.of(k_cache)
    tensors = (q, out, k_cache, v_cache, q_indptr, context_len, page_table)
    columns = (None,) * 7 if shared is None else tuple(c.ctypes.data for c in shared.columns())
    return AttentionCall(
        *(t.data_ptr() for t in tensors),
        *columns,
        0 if shared is None else shared.num_groups,
        *page_table.shape,
        *q.stride()[:2],
        q.shape[1],
        shape.num_kv_heads,
        shape.head_dim,
        shape.page_size,
        torch.get_num_threads(),
        may_split,
        scale,
    )


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
