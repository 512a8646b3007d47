"""RMSNorm with the residual addition before it: `rms_norm.cpp`, or plain torch."""

import ctypes

import torch
from torch import Tensor

from blendrun.kernels.cpu import rms_norm_reference as reference
from blendrun.kernels.cpu.library import kernel_function


class NormCall(ctypes.Structure):
    """`NormCall` in rms_norm.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "branch", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("num_rows", "row_len", "num_threads")),
        ("eps", ctypes.c_float),
    )


def add_rms_norm(hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Adds `branch` to `hidden` in place, and gives the RMSNorm of the sum.

    Args:
        hidden: [T, H], contiguous; the residual stream.
        branch: [T, H] in the dtype of hidden, contiguous; None: nothing is added.
        weight: [H] in the dtype of hidden.
        eps: added to the mean square.

    Returns:
        [T, H], new. The sum is rounded to the dtype before the norm, arithmetic is float32.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    tensors = (hidden, weight) if branch is None else (hidden, weight, branch)
    if len({t.dtype for t in tensors}) > 1 or not all(t.is_contiguous() for t in tensors):
        raise ValueError("hidden, branch and weight must be contiguous and of one dtype")
    fits = branch is None or branch.shape == hidden.shape
    if hidden.dim() != 2 or weight.shape != hidden.shape[1:] or not fits:
        raise ValueError(f"hidden {list(hidden.shape)} does not fit its weight or branch")
    function = kernel_function("rms_norm", "add_rms_norm", hidden)
    if function is None:
        return reference.add_rms_norm(hidden, branch, weight, eps)
    out = torch.empty_like(hidden)
    added = None if branch is None else branch.data_ptr()
    pointers = (hidden.data_ptr(), added, weight.data_ptr(), out.data_ptr())
    function(NormCall(*pointers, *hidden.shape, torch.get_num_threads(), eps))
    return out
