"""Rows of one batch, whichever format they came from, and why a row is set aside.

Knows values, not which column means what.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.json_kinds import KindTracker
from blendrun.data.json_rows import JsonBatch

Code = Literal[
    "bad_json",
    "bad_request",
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
class BatchRequest:
    """What a line of a batch file asks for."""

    custom_id: str | None  # None where it is not usable
    model: str | None
    fields: Mapping[str, Any]  # by column
    problem: tuple[Code, str] | None = None


Adapt = Callable[[Mapping[str, Any]], BatchRequest | None]  # of a JSON row; None: as it is


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of one file: Python values of the columns that ingest reads.

    A list of integers of an Arrow column is a numpy array; everything else is as JSON has it.
    """

    lines: Sequence[int]  # line (JSONL) or row number (Parquet) in the file, from 1
    columns: dict[str, Sequence[Any]]  # None = null or absent
    bad: Rejections  # rows that could not be parsed
    kinds: KindTracker | None = None  # of all columns of JSON rows
    mended: frozenset[int] = frozenset()  # rows that held half of a surrogate pair
    requests: Mapping[int, BatchRequest] = field(default_factory=dict)  # by row, of batch files

    def __len__(self) -> int:
        return len(self.lines)

    def custom_ids(self) -> list[tuple[int, str]]:
        """Rows that are batch requests, with their ids."""
        pairs = ((row, request.custom_id) for row, request in self.requests.items())
        return [(row, custom_id) for row, custom_id in pairs if custom_id is not None]


def rows_from_arrow(batch: pa.RecordBatch, first: int, used: frozenset[str]) -> RowBatch:
    """Rows of a Parquet batch whose first row is number `first` (from 0) of its file."""
    columns: dict[str, Sequence[Any]] = {}
    bad: Rejections = {}
    for index, name in enumerate(batch.schema.names):
        if name in used:
            columns[name] = _values(batch.column(index), name, bad)
    return RowBatch(range(first + 1, first + 1 + batch.num_rows), columns, bad)


def rows_from_json(batch: JsonBatch, used: frozenset[str], adapt: Adapt) -> RowBatch:
    """Rows of a JSONL batch; where `adapt` finds a request, its fields stand for the row's own."""
    kinds = KindTracker()
    bad: Rejections = {index: ("bad_json", why) for index, why in batch.errors.items()}
    requests: dict[int, BatchRequest] = {}
    fields: list[Mapping[str, Any] | None] = []
    for index, row in enumerate(batch.rows):
        if row is None:
            fields.append(None)
            continue
        kinds.add(row)
        request = adapt(row)
        if request is not None:
            requests[index] = request
            if request.problem:
                bad[index] = request.problem
        fields.append(row if request is None else request.fields)
    present = {name for row in fields if row for name in used & row.keys()}
    columns: dict[str, Sequence[Any]] = {
        name: [None if row is None else row.get(name) for row in fields] for name in present
    }
    mended = frozenset(batch.mended)
    return RowBatch(batch.lines.numbers, columns, bad, kinds, mended, requests)


def _values(array: pa.Array, name: str, bad: Rejections) -> Sequence[Any]:
    """The values of a column; rows whose value is none of Python's go to `bad`."""
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and pa.types.is_integer(kind.value_type) and not array.flatten().null_count:
        return IdLists(
            array.values.to_numpy(zero_copy_only=False),
            array.offsets.to_numpy(),
            array.is_valid().to_numpy(zero_copy_only=False),
        )
    try:
        return [_without_nulls(value) for value in _in_microseconds(array).to_pylist()]
    except _NO_VALUE:
        return [_one_value(array, row, name, bad) for row in range(len(array))]


def _one_value(array: pa.Array, row: int, name: str, bad: Rejections) -> Any:
    try:
        return _without_nulls(_in_microseconds(array.slice(row, 1))[0].as_py())
    except _NO_VALUE as error:
        bad[row] = ("bad_type", f"column {name!r}: {error}")
        return None


def _in_microseconds(array: pa.Array) -> pa.Array:
    """Times in the unit of Python's: with pandas installed, pyarrow makes others of nanoseconds.

    Raises:
        pa.ArrowInvalid: a time is no whole number of them.
    """
    kind = array.type
    if not pa.types.is_temporal(kind) or getattr(kind, "unit", "") != "ns":
        return array
    if pa.types.is_timestamp(kind):
        return array.cast(pa.timestamp("us", kind.tz))
    return array.cast(pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us"))


def _without_nulls(value: Any) -> Any:
    """A value without null fields: Arrow gives every struct all fields that any row has."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


# text that is not UTF-8, times that Python cannot hold
_NO_VALUE = (ValueError, OverflowError, pa.ArrowException)
