"""Decode attention whose index arrays stay at their places, so that a graph can be captured of it.

FlashInfer's wrapper then copies each plan into buffers that it is given, and launches alike for all
contexts. Wrappers for several numbers of sequences share their largest buffers: one of them
has a plan at a time.
"""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from blendrun.kernels.flashinfer.library import FlashInfer
from blendrun.kernels.flashinfer.plan_arrays import plan_arrays
from blendrun.kernels.flashinfer.writes import FlashInferWrites
from blendrun.kernels.marks import Mark
from blendrun.kernels.paged.page_index import Int32, PageIndex
from blendrun.kernels.paged.step_split import Int64


class FlashInferDecodes:
    """See `engine.graphs.StaticDecodes`."""

    def __init__(
        self,
        library: FlashInfer,
        layout: str,
        workspace: Tensor,
        kv_indices: Tensor,
        whole_cache: tuple[Tensor, ...],
        num_seqs: int,
        heads: tuple[int, ...],
        how: dict[str, Any],
        *,
        tensor_cores: bool,
    ) -> None:
        """
        Args:
            workspace: uint8 zeros, on the device.
            kv_indices: int32, on the device: room for the pages of all sequences.
            whole_cache: on the device, `writes.whole_cache_index`.
            heads, how: what the wrapper's `plan` takes behind its arrays.
        """
        self._heads, self._how, self._page_size = heads, how, heads[-1]
        self._most_indices, self._device = len(kv_indices), workspace.device
        self._copied = Mark(self._device)

        def ids(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=workspace.device)

        self._wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            layout,
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=ids(num_seqs + 1),
            paged_kv_indices_buffer=kv_indices,
            paged_kv_last_page_len_buffer=ids(num_seqs),
        )
        every = torch.arange(num_seqs, dtype=torch.int32)
        self.writes = FlashInferWrites(library, every, every.long(), whole_cache)

    @property
    def reads(self) -> Self:
        return self

    def fits(self, context_len: Int32) -> bool:
        return int((-(-context_len // self._page_size)).sum()) <= self._most_indices

    def move_to(self, context_len: Int32, page_table: Int32, slots: Int64) -> None:
        one, none = np.ones_like(context_len), np.zeros_like(context_len)
        index = PageIndex.of(one, page_table, none, context_len, self._page_size)
        arrays = plan_arrays(index, self._device)[1:]
        self._copied.wait()  # see `FlashInferAttention`
        self._wrapper.plan(*arrays, *self._heads, **self._how)
        self._copied = Mark(self._device)
        self.writes.move_to(torch.from_numpy(slots))

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """[B, Hq, D] of one layer, see `engine.paged_attention.StepReads`."""
        out: Tensor = self._wrapper.run(q.contiguous(), (k_cache, v_cache))
        return out
