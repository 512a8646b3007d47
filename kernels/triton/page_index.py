"""Which rows of q and which KV pages belong together in a step: FlashInfer's CSR arrays.

Knows nothing of requests or of who owns a page.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DevicePageIndex:
    """S sequences, as `BatchPrefillWithPagedKVCacheWrapper.plan` takes them; int32.

    A sequence may be a shared prefix, whose query rows are those of all its sharers. One without
    pages has no tokens.
    """

    qo_indptr: Tensor  # [S + 1] rows of q, from 0
    kv_indptr: Tensor  # [S + 1] entries of kv_indices, from 0
    kv_indices: Tensor  # [kv_indptr[S]] pages, on the device of the caches
    kv_last_page_len: Tensor  # [S] tokens in the last page; not read where there is none

    def kv_len(self, page_size: int) -> Int64:
        """[S] tokens of each sequence.

        Raises:
            ValueError: the arrays do not fit each other, or a last page has no or too many tokens.
        """
        num_seqs = self.kv_last_page_len.numel()
        if not self.qo_indptr.numel() == self.kv_indptr.numel() == num_seqs + 1:
            raise ValueError("qo_indptr, kv_indptr and kv_last_page_len disagree on the sequences")
        bounds = (_column(self.qo_indptr), _column(self.kv_indptr))
        if any(column[0] != 0 or (np.diff(column) < 0).any() for column in bounds):
            raise ValueError("qo_indptr and kv_indptr must rise from 0")
        if bounds[1][-1] > self.kv_indices.numel():
            raise ValueError("kv_indptr points behind kv_indices")
        num_pages, last = np.diff(bounds[1]), _column(self.kv_last_page_len)
        if ((num_pages > 0) & ((last < 1) | (last > page_size))).any():
            raise ValueError(f"a last page must hold 1 to {page_size} tokens")
        return np.where(num_pages > 0, (num_pages - 1) * page_size + last, 0)

    def q_begin(self) -> Int64:
        """[S + 1] `qo_indptr` on the CPU."""
        return _column(self.qo_indptr)

    def page_begin(self) -> Int64:
        """[S + 1] `kv_indptr` on the CPU."""
        return _column(self.kv_indptr)


def _column(values: Tensor) -> Int64:
    return np.asarray(values.cpu().numpy(), dtype=np.int64)
