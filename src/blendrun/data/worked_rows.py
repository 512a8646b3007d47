"""What becomes of the rows of one piece: requests with their tokens, and rejections."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa

from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.json_kinds import KindTracker
from blendrun.data.notes import Notes
from blendrun.data.rows import Code, Rejections

REJECTED_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("file", pa.string()),
        ("line", pa.int64()),  # physical line (JSONL) or row number (Parquet), from 1
        ("code", pa.string()),  # `data.rows.Code`
        ("message", pa.string()),
        ("id", pa.string()),  # of the id column or of the batch request, where there is one
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class WorkedRows:
    """The rows of one piece; `row` in both tables counts from the start of the piece."""

    path: str
    num_rows: int
    lines: Sequence[int]  # of all rows
    requests: pa.RecordBatch  # `row_work.REQUEST_SCHEMA`
    rejected: pa.RecordBatch  # REJECTED_SCHEMA
    prompts: FlatTokens  # of the requests
    kinds: KindTracker | None  # of JSON values
    notes: Notes
    ids: Sequence[tuple[int, str]] = ()  # row and id, where an id column is named
    custom_ids: Sequence[tuple[int, str]] = ()  # likewise of batch requests

    def without(self, repeated: Collection[int], reason: tuple[Code, str]) -> Self:
        """The same with those of the requests `repeated` rejected."""
        rows = self.requests["row"].to_numpy()
        keep = ~np.isin(rows, list(repeated))
        gone: Rejections = dict.fromkeys(rows[~keep].tolist(), reason)
        rejected = rejected_rows(self.path, self.lines, gone, dict([*self.ids, *self.custom_ids]))
        table = pa.Table.from_batches([self.rejected, rejected]).sort_by("row").combine_chunks()
        return replace(
            self,
            requests=self.requests.filter(pa.array(keep)),
            rejected=next(iter(table.to_batches()), self.rejected),
            prompts=self.prompts.where(keep),
        )


def rejected_rows(
    path: str, lines: Sequence[int], rejections: Rejections, ids: Mapping[int, str]
) -> pa.RecordBatch:
    """The rejections of a piece, as REJECTED_SCHEMA.

    Args:
        lines: of all rows of the piece.
        ids: by row, where there is one.
    """
    rows = sorted(rejections)
    shown = os.fsencode(path).decode("utf-8", "replace")  # also of a name that is not UTF-8
    columns = [
        rows,
        [shown] * len(rows),
        [lines[row] for row in rows],
        [rejections[row][0] for row in rows],
        [rejections[row][1] for row in rows],
        [ids.get(row) for row in rows],
    ]
    arrays = [pa.array(v, f.type) for v, f in zip(columns, REJECTED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECTED_SCHEMA)
