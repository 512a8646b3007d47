"""Products with packed panels in plain torch: what `linear.cpp` must compute."""

from torch import Tensor
from torch.nn import functional as F

from blendrun.kernels.cpu.linear import unpack


def linear(x: Tensor, panels: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `linear.linear`."""
    return F.linear(x, unpack(panels), bias)


def linear_add(x: Tensor, panels: Tensor, bias: Tensor | None, total: Tensor) -> None:
    """See `linear.linear_add`."""
    total.add_(linear(x, panels, bias))


def linear_silu_mul(x: Tensor, panels: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `linear.linear_silu_mul`."""
    gate, up = F.linear(x, unpack(panels, is_gated=True), bias).chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
