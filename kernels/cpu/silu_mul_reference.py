"""silu(gate) * up in plain torch: what `silu_mul.cpp` must compute, and its stand-in."""

from torch import Tensor
from torch.nn import functional as F


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `silu_mul.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
