"""RMSNorm in plain torch: what `rms_norm.cpp` must compute, and its stand-in."""

from torch import Tensor
from torch.nn import functional as F


def add_rms_norm(hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """See `rms_norm.add_rms_norm`."""
    if branch is not None:
        hidden += branch
    return F.rms_norm(hidden, weight.shape, weight, eps)
