"""Rotary embedding and KV writes in plain torch: what `rotary.cpp` must compute, its stand-in."""

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.kernels.cpu import attention_reference
from blendrun.kernels.cpu.rotation import Rotation


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    k_cache: Tensor,
    v_cache: Tensor,
    token_idx: Tensor,
    slots: Tensor,
) -> None:
    """See `rotary.rotate_and_write`."""
    q.copy_(rotated(q, rotation, rotation.q_norm))
    turned = rotated(k, rotation, rotation.k_norm)
    attention_reference.write_kv(turned, v, k_cache, v_cache, token_idx, slots)


def rotated(x: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
    """Heads `x` [T, H, D], normed with `norm` [D] if there is one, then turned; a new tensor.

    Pairs are (i, i + D / 2), as in Hugging Face checkpoints. Rounds once, at the end.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    if norm is not None:
        exact = F.rms_norm(exact, norm.shape, norm.to(exact.dtype), rotation.eps)
    first, second = exact.chunk(2, dim=-1)
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
