"""Attention states joined in plain torch: what `merge_states.py` must compute."""

import math

import torch
from torch import Tensor


def merge_states(values: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """See `merge_states.merge_states`; in float32, float64 where values are that."""
    exact = torch.promote_types(values.dtype, torch.float32)
    merged_lse = (lse.to(exact) * math.log(2)).logsumexp(1) / math.log(2)
    base = merged_lse.masked_fill(merged_lse == -math.inf, 0.0)
    weights = (lse.to(exact) - base[:, None]).exp2()
    return (values.to(exact) * weights[..., None]).sum(1).to(values.dtype), merged_lse
