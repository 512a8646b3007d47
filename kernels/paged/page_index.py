"""Which rows of q read which KV pages, as the index arrays that paged kernels take.

    entry i has rows of q     qo_indptr[i] … qo_indptr[i + 1]
    and the pages             kv_indices[kv_indptr[i] … kv_indptr[i + 1]]
    of which the last holds   kv_last_page_len[i] tokens, 1 to page_size; 0 where it has no page

The rows are the last ones of the entry's tokens where attention is causal. Made of columns, without
a loop over sequences. Knows nothing of who owns which page.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """Of E entries; int32, contiguous."""

    qo_indptr: Int32  # [E + 1]
    kv_indptr: Int32  # [E + 1]
    kv_indices: Int32  # [kv_indptr[-1]]
    kv_last_page_len: Int32  # [E]

    @property
    def num_rows(self) -> int:
        return int(self.qo_indptr[-1])

    @classmethod
    def of(
        cls, num_rows: Int32, page_table: Int32, begin: Int32, end: Int32, page_size: int
    ) -> Self:
        """Entries that read tokens [begin, end) of their contexts.

        Args:
            num_rows: [E] rows of q.
            page_table: [E, max_pages], the page of each page_size tokens of the context.
            begin: [E] tokens, multiples of page_size.
            end: [E] tokens; an entry reads nothing where it is begin.
        """
        first = begin // page_size
        count = -(-end // page_size) - first
        kv_indptr = indptr(count)
        entry = np.repeat(np.arange(len(count)), count)
        place = np.arange(kv_indptr[-1]) - np.repeat(kv_indptr[:-1] - first, count)
        last = np.where(count > 0, (end - 1) % page_size + 1, 0)
        return cls(
            indptr(num_rows),
            kv_indptr,
            np.ascontiguousarray(page_table[entry, place], np.int32),
            last.astype(np.int32),
        )


def indptr(count: Int32) -> Int32:
    """[E + 1] where runs of these lengths begin and end, one after the other."""
    bounds = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=bounds[1:])
    return bounds
