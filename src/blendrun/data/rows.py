"""Rows of one batch, whichever format they came from, and why a row is set aside.

Knows values, not which column means what.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

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


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of one file: Python values of the columns that ingest reads.

    A list of integers of an Arrow column is a numpy array; everything else is as JSON has it.
    """

    lines: Sequence[int]  # line (JSONL) or row number (Parquet) in the file, from 1
    columns: dict[str, list[Any]]  # None = null or absent
    bad: dict[int, str]  # rows that could not be parsed, with the reason

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
    present = {name for row in batch.rows if row for name in used & row.keys()}
    columns = {
        name: [None if row is None else row.get(name) for row in batch.rows] for name in present
    }
    return RowBatch(batch.lines, columns, batch.errors)


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return [_without_nulls(value) for value in array.to_pylist()]
    if not pa.types.is_integer(kind.value_type) or array.flatten().null_count:
        return [_without_nulls(value) for value in array.to_pylist()]
    numbers = array.values.to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy()
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return [numbers[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(array))]


def _without_nulls(value: Any) -> Any:
    """A value without null fields: Arrow gives every struct all fields that any row has."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
