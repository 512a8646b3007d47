"""silu(gate) * up, the middle of the MLP, in Triton."""

import triton
import triton.language as tl
from torch import Tensor

from blendrun.kernels.triton.interpreted import rounded
from blendrun.kernels.triton.launch import Launch

_BLOCK = 1024


@triton.jit
def multiply_halves(gate_up, out, width, BLOCK: tl.constexpr):
    """Grid: rows, blocks of BLOCK values."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_dim = dims < width
    gate_place = gate_up + row * 2 * width + dims
    gate = tl.load(gate_place, mask=is_dim, other=0.0).to(tl.float32)
    up = tl.load(gate_place + width, mask=is_dim, other=0.0).to(tl.float32)
    # of the absolute value: no exponential overflows
    decay = tl.exp(-tl.abs(gate))
    share = tl.where(gate >= 0, 1.0, decay) / (1.0 + decay)
    result = rounded(gate * share * up, out.dtype.element_ty)
    tl.store(out + row * width + dims, result, mask=is_dim)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu of the first half of each row times its second half.

    Args:
        gate_up: [T, 2 I], contiguous.

    Returns:
        [T, I] in the dtype of gate_up; arithmetic is float32.

    Raises:
        ValueError: it is not contiguous, or its rows have no halves.
    """
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[-1] // 2)
    silu_launch(gate_up, out).run()
    return out


def silu_launch(gate_up: Tensor, out: Tensor) -> Launch:
    """`silu_mul` into `out` [T, I], contiguous."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.is_contiguous():
        raise ValueError(f"gate_up must be contiguous [T, 2 I], not {list(gate_up.shape)}")
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    args = {"gate_up": gate_up, "out": out, "width": width, "BLOCK": _BLOCK}
    return Launch(multiply_halves, (num_rows, triton.cdiv(width, _BLOCK)), args, 4)
