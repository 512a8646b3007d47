"""The best entry of each row of logits in plain torch: what `argmax.cpp` must compute."""

import torch
from torch import Tensor


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `argmax.argmax`."""
    # A sum is not finite where an entry is not: one pass. Overflow is told apart.
    finite = torch.isfinite(logits.sum(dim=-1))
    suspects = (~finite).nonzero()[:, 0]
    if len(suspects):
        finite[suspects] = torch.isfinite(logits[suspects]).all(dim=-1)
    return logits.argmax(dim=-1), finite
