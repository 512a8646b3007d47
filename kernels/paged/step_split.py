"""How a step's attention is divided among launches: shared prefixes, decodes, prefill chunks."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes
from blendrun.kernels.paged.cascade import Cascade
from blendrun.kernels.paged.page_index import Int32, PageIndex, indptr
from blendrun.kernels.uploads import upload

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StepSplit:
    """Rows of q, each in one of three parts at most; None: the step has no such part."""

    cascade: Cascade | None
    cascade_rows: Int64  # of q, in the order of the cascade's entries
    decodes: PageIndex | None  # one row each
    decode_rows: Int64
    prefills: PageIndex | None
    prefill_rows: Int64

    @classmethod
    def of(
        cls,
        qo_indptr: Int32,
        context_len: Int32,
        page_table: Int32,
        page_size: int,
        shared: SharedPrefixes | None,
    ) -> Self:
        """Of S sequences: rows qo_indptr[s] … of q are the last ones of context_len[s] tokens.

        Args:
            qo_indptr: [S + 1].
            context_len: [S] tokens.
            page_table: [S, max_pages].
            shared: of these sequences.
        """
        num_rows = np.diff(qo_indptr)
        is_left = num_rows > 0
        cascade = None
        if shared is not None:
            cascade = Cascade.of(shared, num_rows, context_len, page_table, page_size)
        if cascade is not None:
            is_left[cascade.sequences] = False
        none = np.zeros(0, np.int32)

        def index(sequences: Int32) -> PageIndex | None:
            if not len(sequences):
                return None
            end = context_len[sequences]
            rows, pages = num_rows[sequences], page_table[sequences]
            return PageIndex.of(rows, pages, np.zeros_like(end), end, page_size)

        def rows_of(sequences: Int32) -> Int64:
            count = num_rows[sequences]
            bounds = indptr(count)
            shift = np.repeat(qo_indptr[:-1][sequences] - bounds[:-1], count)
            return np.arange(bounds[-1]) + shift.astype(np.int64)

        decodes = np.flatnonzero(is_left & (num_rows == 1)).astype(np.int32)
        prefills = np.flatnonzero(is_left & (num_rows > 1)).astype(np.int32)
        return cls(
            cascade,
            rows_of(none if cascade is None else cascade.sequences),
            index(decodes),
            rows_of(decodes),
            index(prefills),
            rows_of(prefills),
        )


def as_rows(rows: Int64, device: torch.device) -> slice | Tensor:
    """To index q with; a slice where rows follow each other, so that nothing is gathered."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (rows[1:] > rows[:-1]).all():
        return slice(first, last + 1)
    return upload(torch.from_numpy(rows), device)
