"""Rows of one batch, whichever format they came from, and why a row is set aside.

Knows values, not which column means what.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.json_kinds import KindTracker
from blendrun.data.jsonl_reader import JsonBatch

Code = Literal[
    "bad_json",
    "bad_type",
    "empty_prompt",
    "context_length",
    "template_error",
    "bad_token_id",
    "bad_parameter",
    "bad_schema",
]
Rejections = dict[int, tuple[Code, str]]  # index in the batch to code and message


class BadRowError(Exception):
    """One row that cannot run; becomes an error row, never leaves `data`."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


@dataclass(frozen=True, slots=True, eq=False)
class IdLists(Sequence[npt.NDArray[Any] | None]):
    """A column of integer lists; entry i is a view of `flat[offsets[i] : offsets[i + 1]]`."""

    flat: npt.NDArray[Any]  # integers of any width
    offsets: npt.NDArray[Any]  # [rows + 1]
    valid: npt.NDArray[np.bool_]  # [rows] False = null

    def __len__(self) -> int:
        return len(self.valid)

    def __getitem__(self, row: Any) -> Any:
        return self.flat[self.offsets[row] : self.offsets[row + 1]] if self.valid[row] else None


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of one file: Python values of the columns that ingest reads.

    A list of integers of an Arrow column is a numpy array; everything else is as JSON has it.
    """

    lines: Sequence[int]  # line (JSONL) or row number (Parquet) in the file, from 1
    columns: dict[str, Sequence[Any]]  # None = null or absent
    bad: dict[int, str]  # rows that could not be parsed, with the reason
    kinds: KindTracker | None = None  # of all columns of JSON rows

    def __len__(self) -> int:
        return len(self.lines)


def rows_from_arrow(batch: pa.RecordBatch, first: int, used: frozenset[str]) -> RowBatch:
    """Rows of a Parquet batch whose first row is number `first` (from 0) of its file."""
    columns = {
        name: _values(batch.column(index))
        for index, name in enumerate(batch.schema.names)
        if name in used
    }
    return RowBatch(range(first + 1, first + 1 + batch.num_rows), columns, {})


def rows_from_json(batch: JsonBatch, used: frozenset[str]) -> RowBatch:
    """Rows of a JSONL batch."""
    kinds = KindTracker()
    for row in batch.rows:
        if row is not None:
            kinds.add(row)
    present = {name for row in batch.rows if row for name in used & row.keys()}
    columns: dict[str, Sequence[Any]] = {
        name: [None if row is None else row.get(name) for row in batch.rows] for name in present
    }
    return RowBatch(batch.lines, columns, batch.errors, kinds)


def _values(array: pa.Array) -> Sequence[Any]:
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return [_without_nulls(value) for value in array.to_pylist()]
    if not pa.types.is_integer(kind.value_type) or array.flatten().null_count:
        return [_without_nulls(value) for value in array.to_pylist()]
    return IdLists(
        array.values.to_numpy(zero_copy_only=False),
        array.offsets.to_numpy(),
        array.is_valid().to_numpy(zero_copy_only=False),
    )


def _without_nulls(value: Any) -> Any:
    """A value without null fields: Arrow gives every struct all fields that any row has."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
