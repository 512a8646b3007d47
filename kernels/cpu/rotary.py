"""Rotary embedding of q and k, with k and v going into their pages: `rotary.cpp`, or plain torch.

`kv_cache.py` has the layout of the pages. Knows nothing of who owns a page.
"""

import ctypes

import torch
from torch import Tensor

from blendrun.kernels.cpu import attention_checks as checks
from blendrun.kernels.cpu import rotary_reference as reference
from blendrun.kernels.cpu.kv_cache import KvShape
from blendrun.kernels.cpu.library import kernel_function
from blendrun.kernels.cpu.rotation import Rotation

_POINTERS = (
    *("q", "k", "v", "q_norm", "k_norm", "cos", "sin"),
    *("k_cache", "v_cache", "token_idx", "slots"),
)
_STRIDES = tuple(f"{name}_{kind}_stride" for name in "qkv" for kind in ("row", "head"))
_SIZES = ("num_q_heads", "num_kv_heads", "head_dim", "page_size", "num_threads")


class RotaryCall(ctypes.Structure):
    """`RotaryCall` in rotary.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_slots", *_STRIDES, *_SIZES)),
        ("eps", ctypes.c_float),
    )


class RotaryWrites:
    """Where K and V of a step's tokens go; arrays as `rotate_and_write` takes them."""

    def __init__(self, token_idx: Tensor, slots: Tensor) -> None:
        self.token_idx, self.slots = token_idx, slots
        self._checked: tuple[object, ...] = ()  # what was found right in the layer before …
        self._call: RotaryCall | None = None  # … and how it was called
        self._angles: tuple[Tensor, Tensor] | None = None  # whose pointers are in the call

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        """`rotate_and_write` of one layer; what is as in the layer before is not checked again."""
        q_norm, k_norm = rotation.q_norm, rotation.k_norm
        like = (
            *(q.shape, q.stride(), q.dtype, k_cache.shape, k_cache.dtype, v_cache.shape),
            *(k.shape, k.stride(), k.dtype, v.shape, v.stride(), v.dtype),
            *(None if norm is None else (norm.shape, norm.dtype) for norm in (q_norm, k_norm)),
        )
        function = kernel_function("rotary", "rotate_and_write", k_cache)
        angles = self._angles
        is_alike = angles is not None and rotation.cos is angles[0] and rotation.sin is angles[1]
        if function is None or self._call is None or not is_alike or like != self._checked:
            index = (self.token_idx, self.slots)
            self._call = rotate_and_write(q, k, v, rotation, k_cache, v_cache, *index)
            self._checked, self._angles = like, (rotation.cos, rotation.sin)
            return
        call = self._call
        call.q, call.k, call.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        call.k_cache, call.v_cache = k_cache.data_ptr(), v_cache.data_ptr()
        if q_norm is not None:
            call.q_norm = q_norm.data_ptr()
        if k_norm is not None:
            call.k_norm = k_norm.data_ptr()
        function(call)


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    k_cache: Tensor,
    v_cache: Tensor,
    token_idx: Tensor,
    slots: Tensor,
) -> RotaryCall | None:
    """Norms and turns q in place; k, normed and turned, and v go into their slots.

    Args:
        q: [T, Hq, D] in the cache's dtype; any strides but the last, which is 1.
        k, v: [T, Hkv, D] like q; they stay as they are.
        rotation: of the T tokens.
        k_cache, v_cache: one layer of `attention.CpuAttention.alloc_kv_cache`.
        token_idx: int32 [W], rows of k and v; a token may go to several slots.
        slots: int64 [W], page * page_size + offset, all different.

    Returns:
        How C++ was called; None: plain torch did it.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    checks.check_rows(k, k_cache)
    checks.check_rows(v, k_cache)
    _check(q, rotation, k_cache)
    if token_idx.dtype != torch.int32 or slots.dtype != torch.int64:
        raise ValueError("token_idx must be int32 and slots int64")
    function = kernel_function("rotary", "rotate_and_write", k_cache)
    if function is None:
        reference.rotate_and_write(q, k, v, rotation, k_cache, v_cache, token_idx, slots)
        return None
    shape = KvShape.of(k_cache)
    norms = (rotation.q_norm, rotation.k_norm)
    tensors = (rotation.cos, rotation.sin, k_cache, v_cache, token_idx, slots)
    call = RotaryCall(
        *(t.data_ptr() for t in (q, k, v)),
        *(None if norm is None else norm.data_ptr() for norm in norms),
        *(t.data_ptr() for t in tensors),
        q.shape[0],
        slots.numel(),
        *(stride for t in (q, k, v) for stride in t.stride()[:2]),
        q.shape[1],
        shape.num_kv_heads,
        shape.head_dim,
        shape.page_size,
        torch.get_num_threads(),
        rotation.eps,
    )
    function(call)
    return call


def _check(q: Tensor, rotation: Rotation, k_cache: Tensor) -> None:
    head_dim = KvShape.of(k_cache).head_dim
    if q.dtype != k_cache.dtype or q.dim() != 3 or q.stride(-1) != 1 or q.shape[2] != head_dim:
        raise ValueError(f"q must be {k_cache.dtype} [T, Hq, {head_dim}], its last dim contiguous")
    angles = (rotation.cos, rotation.sin)
    fits = (t.dtype == torch.float32 and t.is_contiguous() for t in angles)
    if not all(fits) or any(t.shape != (q.shape[0], head_dim // 2) for t in angles):
        raise ValueError(f"cos and sin must be float32 [{q.shape[0]}, {head_dim // 2}]")
    norms = [norm for norm in (rotation.q_norm, rotation.k_norm) if norm is not None]
    if any(norm.shape != (head_dim,) or norm.dtype != q.dtype for norm in norms):
        raise ValueError(f"the norms must be {q.dtype} [{head_dim}]")
