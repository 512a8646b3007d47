"""The index arrays of a step as the `plan` of FlashInfer's wrappers takes them.

It reads all but the page numbers on the CPU, and copies them to the device. Page numbers it only
copies; with a graph's buffers it would wait for the device, were they not there already.
"""

import torch
from torch import Tensor

from blendrun.kernels.paged.page_index import PageIndex
from blendrun.kernels.uploads import pinned, upload


def plan_arrays(index: PageIndex, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`qo_indptr`, `kv_indptr`, `kv_indices`, `kv_last_page_len`, in the order of the wrappers."""
    qo_indptr, kv_indptr, last = (
        pinned(torch.from_numpy(array), device)
        for array in (index.qo_indptr, index.kv_indptr, index.kv_last_page_len)
    )
    return qo_indptr, kv_indptr, upload(torch.from_numpy(index.kv_indices), device), last
