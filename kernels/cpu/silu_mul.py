"""silu(gate) * up, the middle of the MLP: `silu_mul.cpp`, or plain torch."""

import ctypes

import torch
from torch import Tensor

from blendrun.kernels.cpu import silu_mul_reference as reference
from blendrun.kernels.cpu.library import kernel_function


class SiluMulCall(ctypes.Structure):
    """`SiluMulCall` in silu_mul.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate_up", "out")),
        *((name, ctypes.c_int64) for name in ("num_rows", "width", "num_threads")),
    )


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu of the first half of each row times its second half.

    Args:
        gate_up: [T, 2 I], contiguous.

    Returns:
        [T, I] in the dtype of gate_up; arithmetic is float32.

    Raises:
        ValueError: it is not contiguous, or its rows have no halves.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.is_contiguous():
        raise ValueError(f"gate_up must be contiguous [T, 2 I], not {list(gate_up.shape)}")
    function = kernel_function("silu_mul", "silu_mul", gate_up)
    if function is None:
        return reference.silu_mul(gate_up)
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, width, dtype=gate_up.dtype)
    pointers = (gate_up.data_ptr(), out.data_ptr())
    function(SiluMulCall(*pointers, num_rows, width, torch.get_num_threads()))
    return out
