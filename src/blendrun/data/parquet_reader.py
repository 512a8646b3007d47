"""Parquet files as a stream of record batches of bounded size.

Columns that stand in the names of folders come after those of the file, which win where both have
one. Knows Arrow types, not which column means what.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.locations import Location, size_of
from blendrun.data.partitions import partitions_of
from blendrun.errors import InputError

_BATCH_ROWS = 8192
_BATCH_BYTES = 2**20  # small, so that no worker is left with a large last piece
_READ_BYTES = 2**20  # a column chunk is read in pieces of this size, not whole


def read_schema(path: Location) -> pa.Schema:
    """Arrow schema of the file, with its metadata. Raises InputError if it is not Parquet."""
    with _open(path) as file:
        schema = file.schema_arrow
    for name in _partitions(path, schema):
        schema = schema.append(pa.field(name, pa.string()))
    return schema


def read_parquet(
    path: Location,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows in batches of some megabytes, all columns or those named.

    `progress` is told the bytes of the file read so far, by share of rows, after each batch.

    Raises:
        InputError: the file is not Parquet or is damaged.
    """
    with _open(path) as file:
        own = file.schema_arrow
        partitions = {
            name: value
            for name, value in _partitions(path, own).items()
            if columns is None or name in columns
        }
        if columns is not None:
            columns = [name for name in columns if name not in partitions]
        num_rows = file.metadata.num_rows
        wanted = num_rows if limit is None else min(limit, num_rows)
        done = 0
        num_bytes = size_of(path) if progress else 0
        batches = file.iter_batches(_batch_rows(file.metadata), columns=columns)
        while done < wanted:
            try:
                batch = next(batches)
            except (pa.ArrowException, OSError, StopIteration) as error:
                raise InputError(f"{path} is damaged after row {done}: {error}") from error
            batch = batch.slice(0, wanted - done)
            done += batch.num_rows
            yield _with(batch, partitions)
            if progress:
                progress(num_bytes * done // num_rows)


def _partitions(path: Location, own: pa.Schema) -> dict[str, str | None]:
    """Those of the folders' columns that the file does not have itself."""
    return {name: value for name, value in partitions_of(path).items() if name not in own.names}


def _with(batch: pa.RecordBatch, constants: dict[str, str | None]) -> pa.RecordBatch:
    """The batch with a column for each of `constants`."""
    for name, value in constants.items():
        column = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        batch = batch.append_column(pa.field(name, pa.string()), column)
    return batch


@contextmanager
def _open(path: Location) -> Iterator[pq.ParquetFile]:
    with ExitStack() as stack:
        source = path if isinstance(path, Path) else stack.enter_context(path.open("rb"))
        try:
            file = stack.enter_context(pq.ParquetFile(source, buffer_size=_READ_BYTES))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"cannot read {path} as Parquet: {error}") from error
        yield file


def _batch_rows(metadata: pq.FileMetaData) -> int:
    sizes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    row_bytes = sum(sizes) / max(metadata.num_rows, 1)
    return int(min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(row_bytes, 1))))
