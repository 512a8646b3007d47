"""The rows of all inputs as a stream of pieces that can be worked on anywhere.

A piece holds some megabytes of consecutive rows of one file, as read and not yet parsed. Knows
files and their order, not what a row means.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from blendrun.data.columns import ColumnNames
from blendrun.data.json_rows import parse_lines
from blendrun.data.jsonl_reader import Lines, read_lines
from blendrun.data.locations import Location, locate, size_of
from blendrun.data.parquet_reader import read_parquet, read_schema
from blendrun.data.partitions import partitions_of
from blendrun.data.rows import Adapt, RowBatch, rows_from_arrow, rows_from_json
from blendrun.data.sources import Format, format_of, hash_file

Progress = Callable[[int, int], None]  # bytes of the input files read so far, and in all


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive rows of the file `path`: a record batch, or lines of JSON."""

    path: str
    content: pa.RecordBatch | Lines
    first: int  # row of the file, from 0

    def __len__(self) -> int:
        return int(self.content.num_rows) if isinstance(self.content, pa.RecordBatch) else len(
            self.content
        )  # fmt: skip

    def split(self, num_rows: int) -> tuple[Self, Self]:
        """The first `num_rows` rows, and the others."""
        if isinstance(self.content, pa.RecordBatch):
            head, tail = self.content.slice(0, num_rows), self.content.slice(num_rows)
        else:
            head, tail = self.content.split(num_rows)
        kind = type(self)
        return kind(self.path, head, self.first), kind(self.path, tail, self.first + num_rows)

    def rows(self, used: frozenset[str], adapt: Adapt) -> RowBatch:
        """The values of the columns `used`; lines are parsed here, and `adapt` judges each."""
        if isinstance(self.content, pa.RecordBatch):
            return rows_from_arrow(self.content, self.first, used)
        parsed = parse_lines(self.content, partitions_of(locate(self.path)))
        return rows_from_json(parsed, used, adapt)


@dataclass(slots=True)
class ReadFile:
    """One input file: what was read of it, and its hash, which is taken meanwhile."""

    path: Location
    format: Format
    size_bytes: int
    sha256: Future[str]
    num_rows: int = 0


class PieceReader:
    """Reads files one after the other; `take` goes on where it stopped before."""

    def __init__(
        self,
        files: Sequence[Location],
        columns: ColumnNames,
        limit: int | None,
        progress: Progress | None,
    ) -> None:
        self._columns, self._progress = columns, progress
        self._total_bytes = sum(map(size_of, files))
        self._hashing = ThreadPoolExecutor(1)
        self.files: list[ReadFile] = []  # those begun so far
        self._pieces = self._read(files, limit)
        self._rest: Piece | None = None  # of a piece that a `take` has cut

    def take(self, num_rows: int | None = None) -> Iterator[Piece]:
        """The next `num_rows` rows, or all that are left."""
        left = num_rows
        while left is None or left > 0:
            piece = self._rest or next(self._pieces, None)
            self._rest = None
            if piece is None:
                return
            if left is not None:
                if len(piece) > left:
                    piece, self._rest = piece.split(left)
                left -= len(piece)
            yield piece

    def at_end(self) -> bool:
        """Whether there is no row left."""
        self._rest = self._rest or next(self._pieces, None)
        return self._rest is None

    def close(self) -> None:
        self._pieces.close()
        self._hashing.shutdown(cancel_futures=True)

    def _read(self, files: Sequence[Location], limit: int | None) -> Generator[Piece, None, None]:
        left, bytes_before = limit, 0
        for path in files:
            if left == 0:
                return
            size = size_of(path)
            file = ReadFile(path, format_of(path), size, self._hashing.submit(hash_file, path))
            self.files.append(file)
            report = self._report(bytes_before)
            for piece in self._read_file(path, left, report):
                file.num_rows += len(piece)
                yield piece
            left = None if left is None else left - file.num_rows
            bytes_before += size
        if self._progress:
            self._progress(self._total_bytes, self._total_bytes)

    def _read_file(
        self, path: Location, limit: int | None, report: Callable[[int], None] | None
    ) -> Iterator[Piece]:
        batches: Iterator[pa.RecordBatch] | Iterator[Lines]
        if format_of(path) == "parquet":
            used = self._columns.used()
            present = [name for name in read_schema(path).names if name in used]
            batches = read_parquet(path, present, limit, report)
        else:
            batches = read_lines(path, limit, report)
        first = 0
        for batch in batches:
            piece = Piece(str(path), batch, first)
            yield piece
            first += len(piece)

    def _report(self, before: int) -> Callable[[int], None] | None:
        progress, total = self._progress, self._total_bytes
        if progress is None:
            return None
        return lambda num_bytes: progress(before + num_bytes, total)
