"""What unfinished answers have so far: one file in the run folder that replaces itself."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.table_file import write_table
from blendrun.errors import PlanError

UNFINISHED_FILE = "unfinished.parquet"
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


def write_unfinished(run_dir: Path, table: pa.Table) -> None:
    """Replace what was there. Without rows there is no file.

    Raises:
        DiskFullError: there is no room; what was there stays.
    """
    path = run_dir / UNFINISHED_FILE
    if not table.num_rows:
        path.unlink(missing_ok=True)
        return
    write_table(path, table)


def read_unfinished(run_dir: Path) -> pa.Table:
    """UNFINISHED_SCHEMA, without rows where there is no file.

    Raises:
        PlanError: the file cannot be read.
    """
    path = run_dir / UNFINISHED_FILE
    if not path.is_file():
        return UNFINISHED_SCHEMA.empty_table()
    try:
        with pq.ParquetFile(path) as file:
            return file.read().select(UNFINISHED_SCHEMA.names).cast(UNFINISHED_SCHEMA)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise PlanError(
            f"cannot read the unfinished answers in {path}: {error}",
            "move the file away; those answers then start over",
        ) from error
