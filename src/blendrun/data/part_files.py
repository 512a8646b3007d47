"""Numbered files of a run, and many small ones put together: no run leaves thousands of them.

`part-000007.parquet` is one file as it was added, `part-000003-000258.parquet` stands for those
numbers. It appears first, then they go: whoever finds both, after a kill, passes the others over.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.disk import atomic_file, sync_folder
from blendrun.units import MIB, format_bytes

MOST_SMALL_FILES = 256
_SMALL_BYTES = MIB
_GROUP_BYTES = 16 * MIB  # of columns in memory


NUMBERS = 10**8  # of the files that one writer may add
EVERY_NUMBER = range(NUMBERS**2)


class PartFile(NamedTuple):
    first: int
    last: int
    path: Path


def list_files(folder: Path, stem: str) -> tuple[list[PartFile], list[PartFile]]:
    """The files that count, oldest first, and those that a merged file stands for."""
    pattern = re.compile(rf"{stem}-(\d+)(?:-(\d+))?\.parquet")
    found = []
    for path in folder.glob(f"{stem}-*.parquet"):
        match = pattern.fullmatch(path.name)
        if match:
            found.append(PartFile(int(match[1]), int(match[2] or match[1]), path))
    counting: list[PartFile] = []
    superseded: list[PartFile] = []
    for file in sorted(found, key=lambda file: (file.first, -file.last)):
        inside = counting and file.last <= counting[-1].last
        (superseded if inside else counting).append(file)
    return counting, superseded


def remove_superseded(folder: Path, stem: str) -> None:
    """Finish a merge that was killed."""
    for file in list_files(folder, stem)[1]:
        file.path.unlink()


def small_files(folder: Path, stem: str, numbers: range = EVERY_NUMBER) -> list[PartFile]:
    """The newest files of those `numbers`, as far back as all are small, oldest first."""
    newest = (file for file in reversed(list_files(folder, stem)[0]) if file.last in numbers)
    return list(takewhile(lambda file: file.path.stat().st_size < _SMALL_BYTES, newest))[::-1]


def merge_small_files(
    folder: Path, stem: str, read: Callable[[Path], pa.Table], numbers: range = EVERY_NUMBER
) -> None:
    """Put the newest files of those `numbers` together where MOST_SMALL_FILES or more are small.

    Raises:
        DiskFullError: there is no room for the merged file; nothing is lost.
        what `read` raises.
    """
    small = small_files(folder, stem, numbers)
    if len(small) < MOST_SMALL_FILES:
        return
    paths = [file.path for file in small]
    merged = folder / f"{stem}-{small[0].first:06d}-{small[-1].last:06d}.parquet"
    schema = pa.unify_schemas([read(path).schema for path in paths], promote_options="permissive")
    needs = format_bytes(sum(path.stat().st_size for path in paths))
    with (
        atomic_file(merged, needs) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for group in _groups(map(read, paths), schema):
            writer.write_table(group)
    for path in paths:
        path.unlink()
    sync_folder(folder)


def _groups(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    pending = [schema.empty_table()]
    for table in tables:
        pending.append(table)
        if sum(table.nbytes for table in pending) >= _GROUP_BYTES:
            yield _joined(pending, schema)
            pending = [schema.empty_table()]
    yield _joined(pending, schema)


def _joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive").cast(schema)
