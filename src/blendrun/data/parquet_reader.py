"""Parquet files as a stream of record batches of bounded size.

Knows Arrow types, not which column means what.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.errors import InputError

_BATCH_ROWS = 8192
_BATCH_BYTES = 8 * 2**20
_READ_BYTES = 2**20  # a column chunk is read in pieces of this size, not whole


def read_schema(path: Path) -> pa.Schema:
    """Arrow schema of the file, with its metadata. Raises InputError if it is not Parquet."""
    with _open(path) as file:
        return file.schema_arrow


def read_parquet(
    path: Path,
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
        num_rows = file.metadata.num_rows
        wanted = num_rows if limit is None else min(limit, num_rows)
        done = 0
        batches = file.iter_batches(_batch_rows(file.metadata), columns=columns)
        while done < wanted:
            try:
                batch = next(batches)
            except (pa.ArrowException, OSError, StopIteration) as error:
                raise InputError(f"{path} is damaged after row {done}: {error}") from error
            batch = batch.slice(0, wanted - done)
            done += batch.num_rows
            yield batch
            if progress:
                progress(path.stat().st_size * done // num_rows)


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, buffer_size=_READ_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot read {path} as Parquet: {error}") from error


def _batch_rows(metadata: pq.FileMetaData) -> int:
    sizes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    row_bytes = sum(sizes) / max(metadata.num_rows, 1)
    return int(min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(row_bytes, 1))))
