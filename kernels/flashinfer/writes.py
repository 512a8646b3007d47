"""Rotary embedding and KV writes of a step through FlashInfer."""

import torch
from torch import Tensor

from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.flashinfer.library import FlashInfer
from blendrun.kernels.paged.nhd_cache import in_dtype_of
from blendrun.kernels.uploads import upload


class FlashInferWrites:
    """Where the K and V of a step's tokens go, the same for all layers."""

    def __init__(
        self, library: FlashInfer, token_idx: Tensor, slots: Tensor, whole_cache: tuple[Tensor, ...]
    ) -> None:
        """
        Args:
            token_idx: int32 [W], rows of k and v; a token may go to several slots.
            slots: int64 [W], page * page_size + offset, all different.
            whole_cache: on the device, `whole_cache_index`.
        """
        self._library, self._cache_index = library, whole_cache
        device = whole_cache[0].device
        self._token_idx = upload(token_idx.long(), device)
        # all pages in order are one sequence, in which a slot is a position
        self._positions = upload(slots.to(torch.int32), device)
        self._sequence = torch.zeros_like(self._positions)
        self._angles_of: Tensor | None = None  # the step's cosines, which all layers share

    def move_to(self, slots: Tensor) -> None:
        """As many other slots, int64 on the CPU; they are written over those before."""
        self._positions.copy_(upload(slots, self._positions.device))

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        """Norms and turns q and k in place, and writes k and v; see `cpu.rotary`.

        Unlike there, q and k are rounded between norm and turn.
        """
        for heads, norm in ((q, rotation.q_norm), (k, rotation.k_norm)):
            if norm is not None:
                self._library.rmsnorm(heads, norm, rotation.eps, out=heads)
        if self._angles_of is not rotation.cos:
            self._angles_of = rotation.cos
            self._angles = torch.cat([rotation.cos, rotation.sin], dim=-1)
            self._rows = torch.arange(len(self._angles), dtype=torch.int32, device=q.device)
        self._library.apply_rope_with_cos_sin_cache_inplace(
            self._rows, q.flatten(1), k.flatten(1), q.shape[2], self._angles
        )
        self._library.append_paged_kv_cache(
            in_dtype_of(k_cache, k[self._token_idx]),
            in_dtype_of(v_cache, v[self._token_idx]),
            self._sequence,
            self._positions,
            (k_cache, v_cache),
            *self._cache_index,
        )


def whole_cache_index(num_pages: int, page_size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Indices, indptr and last page length of one sequence that has all pages, in order."""
    return (
        torch.arange(num_pages, dtype=torch.int32, device=device),
        torch.tensor([0, num_pages], dtype=torch.int32, device=device),
        torch.tensor([page_size], dtype=torch.int32, device=device),
    )
