"""The answers of a run by ranges of input rows, so that no more than a range is in memory.

Parts have answers in the order in which they ended. Where all of them together are large, they are
divided once, into a file for each range; else they are one range, and stay where they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.answers import ANSWER_SCHEMA
from blendrun.data.disk import TEMP_SUFFIX, full_disk
from blendrun.data.output_files import remove
from blendrun.data.results import PARTS, files_of, read_answers, read_part, wide_answers
from blendrun.units import MIB

Int64 = npt.NDArray[np.int64]

_FOLDER = "ranges" + TEMP_SUFFIX
_RANGE_BYTES = 64 * MIB  # of columns
_PENDING_BYTES = 32 * MIB
_MOST_RANGES = 256  # files that are open at once


@dataclass(frozen=True, slots=True)
class RowRange:
    """Input rows, and the file of their answers; None: all parts of the run."""

    run_dir: Path
    rows: range
    path: Path | None

    def read(self) -> pa.Table:
        """As `read_answers`. Raises PlanError."""
        if self.path is None:
            return read_answers(self.run_dir)
        return wide_answers([read_part(self.path, ANSWER_SCHEMA.names)])


@contextmanager
def row_ranges(run_dir: Path, num_rows: int) -> Iterator[list[RowRange]]:
    """Consecutive ranges of a job's `num_rows` rows; their files last as long as the block.

    An answer whose row the job does not have is in the last range.

    Raises:
        PlanError: a part cannot be read.
        DiskFullError: there is no room for the files.
    """
    num_bytes = sum(map(_column_bytes, files_of(run_dir, PARTS)))
    count = max(min(-(-num_bytes // _RANGE_BYTES), _MOST_RANGES, num_rows), 1)
    if count == 1:
        yield [RowRange(run_dir, range(num_rows), None)]
        return
    folder = run_dir / _FOLDER
    remove(folder)
    folder.mkdir()
    try:
        starts = np.arange(count + 1) * num_rows // count
        paths = [folder / f"{number:03d}.parquet" for number in range(count)]
        with full_disk(folder):
            _divide(run_dir, paths, starts[1:-1])
        yield [
            RowRange(run_dir, range(int(start), int(end)), path)
            for start, end, path in zip(starts[:-1], starts[1:], paths, strict=True)
        ]
    finally:
        remove(folder)


def _column_bytes(path: Path) -> int:
    metadata = pq.read_metadata(path)
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _divide(run_dir: Path, paths: Sequence[Path], borders: Int64) -> None:
    """Write the answers before, between and behind the rows `borders` to `paths`."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pq.ParquetWriter(path, ANSWER_SCHEMA, compression="lz4"))
            for path in paths
        ]
        pending: list[pa.Table] = []
        for part in files_of(run_dir, PARTS):
            pending.append(read_part(part, ANSWER_SCHEMA.names))
            if sum(table.nbytes for table in pending) >= _PENDING_BYTES:
                _write(pa.concat_tables(pending), writers, borders)
                pending = []
        if pending:
            _write(pa.concat_tables(pending), writers, borders)


def _write(table: pa.Table, writers: Sequence[pq.ParquetWriter], borders: Int64) -> None:
    which = np.searchsorted(borders, table["row"].to_numpy(), side="right")
    for number, writer in enumerate(writers):
        mine = table.filter(pa.array(which == number))
        if mine.num_rows:
            writer.write_table(mine)
