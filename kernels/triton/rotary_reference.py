"""Rotary embedding and KV writes in plain torch: what `rotary.py` must compute."""

from torch import Tensor

from blendrun.kernels.cpu.rotary_reference import rotated
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.paged.nhd_cache import in_dtype_of


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
    rows, page_size = token_idx.long(), k_cache.shape[1]
    page, offset = slots // page_size, slots % page_size
    k_cache[page, offset] = in_dtype_of(k_cache, rotated(k, rotation, rotation.k_norm)[rows])
    v_cache[page, offset] = in_dtype_of(v_cache, v[rows])
    q.copy_(rotated(q, rotation, rotation.q_norm))
