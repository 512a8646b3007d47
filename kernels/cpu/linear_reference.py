"""Products with packed panels in plain torch: what `linear.cpp` must compute."""

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.kernels.cpu.argmax import Best, best
from blendrun.kernels.cpu.linear import unpack


def linear(
    x: Tensor, panels: Tensor, bias: Tensor | None = None, *, eps: float | None = None
) -> Tensor:
    """See `linear.linear`."""
    return F.linear(_normed(x, eps), unpack(panels), bias)


def linear_add(x: Tensor, panels: Tensor, bias: Tensor | None, total: Tensor) -> None:
    """See `linear.linear_add`."""
    total.add_(linear(x, panels, bias))


def linear_silu_mul(
    x: Tensor, panels: Tensor, bias: Tensor | None = None, *, eps: float | None = None
) -> Tensor:
    """See `linear.linear_silu_mul`."""
    gate, up = F.linear(_normed(x, eps), unpack(panels, is_gated=True), bias).chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def linear_argmax(x: Tensor, panels: Tensor) -> Best:
    """See `linear.linear_argmax`."""
    return best(linear(x, panels))


def _normed(x: Tensor, eps: float | None) -> Tensor:
    if eps is None:
        return x
    return (x * torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype)
