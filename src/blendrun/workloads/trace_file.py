"""Length traces: Parquet files with the token counts of recorded requests.

Columns `input_tokens` and `output_tokens`, whole numbers; others are ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.parquet_reader import read_parquet, read_schema
from blendrun.errors import InputError
from blendrun.tree.prefix_tree import Int32

INPUT, OUTPUT = "input_tokens", "output_tokens"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and its share in a set, relative to the set's other files."""

    path: Path
    weight: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """R rows of one or more traces."""

    input_len: Int32  # [R] tokens, at least 1
    output_len: Int32  # [R] tokens, at least 1
    upto: npt.NDArray[np.float64]  # [R] weight of the rows up to and including each


def read_traces(files: Sequence[TraceFile]) -> Lengths:
    """All rows of `files`; the rows of a file have its weight together, in equal parts.

    A length below 1 counts as 1: a request has at least one token on either side.

    Raises:
        InputError: a file is missing, is no trace, or has no rows.
    """
    tables = [_read(file.path) for file in files]
    weights = [
        np.full(table.num_rows, file.weight / table.num_rows)
        for file, table in zip(files, tables, strict=True)
    ]
    columns = [
        np.concatenate([table[name].to_numpy().astype(np.int64) for table in tables])
        for name in (INPUT, OUTPUT)
    ]
    input_len, output_len = (np.clip(c, 1, 2**31 - 1).astype(np.int32) for c in columns)
    return Lengths(input_len, output_len, np.cumsum(np.concatenate(weights)))


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise InputError(
            f"no length trace {path}", f"a trace is a Parquet file with {INPUT} and {OUTPUT}"
        )
    schema = read_schema(path)
    for name in (INPUT, OUTPUT):
        if name not in schema.names or not pa.types.is_integer(schema.field(name).type):
            raise InputError(
                f"{path} has no column {name!r} of whole numbers",
                f"columns of this file: {', '.join(schema.names) or 'none'}",
            )
    lengths = pa.schema([schema.field(INPUT), schema.field(OUTPUT)])
    table = pa.Table.from_batches(read_parquet(path, lengths.names), lengths)
    if table.num_rows == 0:
        raise InputError(f"the length trace {path} has no rows")
    for name in (INPUT, OUTPUT):
        if table[name].null_count:
            raise InputError(f"{path}: column {name!r} has nulls")
    return table
