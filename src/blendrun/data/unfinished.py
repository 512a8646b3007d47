"""What unfinished answers have so far: one file in the run folder that replaces itself.

While several ranks write to the folder, each has a file of its own beside it.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.data.table_file import write_table
from blendrun.errors import PlanError

UNFINISHED_FILE = "unfinished.parquet"
_FILE_OF_WRITER = "unfinished-{}.parquet"
UNFINISHED_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # as in the table of answers, like the next
        pa.field("output_index", pa.int32(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),  # L so far, at least one
        pa.field("logprobs", pa.list_(pa.float32())),  # [L]; null where not asked for, like …
        pa.field("top_token_ids", pa.list_(pa.int32())),  # … the k best of each place, [L * k], …
        pa.field("top_logprobs", pa.list_(pa.float32())),  # … and theirs
    ]
)


def write_unfinished(run_dir: Path, table: pa.Table, writer: int | None = None) -> None:
    """Replace what was there, or what this `writer`, one of several, had written.

    Without rows there is no file.

    Raises:
        DiskFullError: there is no room; what was there stays.
    """
    if writer is not None:
        path = run_dir / _FILE_OF_WRITER.format(writer)
    else:
        path = run_dir / UNFINISHED_FILE
    if table.num_rows:
        write_table(path, table)
    else:
        path.unlink(missing_ok=True)
    if writer is None:
        for other in _files_of_writers(run_dir):
            other.unlink()


def gather_unfinished(run_dir: Path) -> None:
    """Put what several writers had into the one file; of an answer, the longest.

    Nobody else may write to the folder. Raises DiskFullError, PlanError.
    """
    others = _files_of_writers(run_dir)
    if not others:
        return
    tables = [_read(path) for path in (run_dir / UNFINISHED_FILE, *others) if path.is_file()]
    table = pa.concat_tables(tables)
    row, index = (table[name].to_numpy() for name in ("row", "output_index"))
    length = pc.list_value_length(table["token_ids"]).to_numpy()
    order = np.lexsort((-length, index, row))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(row[order]) != 0) | (np.diff(index[order]) != 0)
    write_unfinished(run_dir, table.take(pa.array(order[is_first])))


def read_unfinished(run_dir: Path) -> pa.Table:
    """UNFINISHED_SCHEMA, without rows where there is no file.

    Raises:
        PlanError: the file cannot be read.
    """
    path = run_dir / UNFINISHED_FILE
    return _read(path) if path.is_file() else UNFINISHED_SCHEMA.empty_table()


def _files_of_writers(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob(_FILE_OF_WRITER.format("*")))


def _read(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read().select(UNFINISHED_SCHEMA.names).cast(UNFINISHED_SCHEMA)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise PlanError(
            f"cannot read the unfinished answers in {path}: {error}",
            "move the file away; those answers then start over",
        ) from error
