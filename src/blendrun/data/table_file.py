"""A small table as one Parquet file, whole or not at all."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.disk import atomic_file
from blendrun.units import format_bytes


def write_table(path: Path, table: pa.Table) -> None:
    """Write `table`, which is in memory twice for a moment: its size is known before it is written.

    Raises:
        DiskFullError: says how many bytes it needs.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    with atomic_file(path, format_bytes(data.size)) as file:
        file.write(data)
