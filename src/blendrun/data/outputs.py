"""The final file, or its parts: every input row in input order, with its columns and its answer.

A row that asks for several answers is there once for each, one after the other.

Streams the inputs again; holds the answers of a span of rows in memory as Arrow columns, and one
row group.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.answers import (
    INDEX_COLUMN,
    MOST_ANSWERS,
    PLAIN_OUTPUT_COLUMNS,
    RARE_OUTPUT_COLUMNS,
    answer_keys,
    rejected_answers,
)
from blendrun.data.disk import atomic_file, atomic_folder
from blendrun.data.json_rows import json_columns, read_jsonl
from blendrun.data.locations import locate
from blendrun.data.output_files import OutputFiles, part_name
from blendrun.data.output_schema import output_schema, source_schema
from blendrun.data.parquet_reader import read_parquet
from blendrun.data.results import PARTS, files_of, keys_of, one_of_each, used_columns
from blendrun.data.row_ranges import RowRange, row_ranges
from blendrun.data.scores import gathered
from blendrun.data.sources import SourceFile, check_sources
from blendrun.errors import PlanError
from blendrun.units import format_bytes

_GROUP_BYTES = 16 * 2**20  # of columns in memory


def write_outputs(
    run_dir: Path,
    sources: Sequence[SourceFile],
    num_rows: int,
    rejected: pa.Table,
    num_answers: npt.NDArray[np.int64] | None = None,
    is_scored: npt.NDArray[np.bool_] | None = None,
    part_bytes: int | None = None,
) -> Path:
    """Writes the outputs from the answers of a run, the rejected rows and the inputs.

    Args:
        num_answers: how many answers each input row has, error rows included; None: one.
        is_scored: of each input row, whether its answers are scores, which go to lists; None: not.
        part_bytes: a part that has so many bytes is the end of it; None: one file.

    Raises:
        PlanError: an input has changed, a row has no answer, or an answer has no row.
        DiskFullError: there is no room for it.
    """
    check_sources(sources)
    if num_answers is None:
        num_answers = np.ones(num_rows, np.int64)
    if is_scored is None:
        is_scored = np.zeros(num_rows, np.bool_)
    several = bool((num_answers[~is_scored] > 1).any())
    columns = [*PLAIN_OUTPUT_COLUMNS, *_used_columns(run_dir, several)]
    schema = output_schema(sources, columns)
    files = OutputFiles(run_dir, part_bytes)
    needs = f"about {format_bytes(_size(run_dir, sources))}"
    with row_ranges(run_dir, num_rows) as ranges:
        answers = _Answers(ranges, rejected, num_answers, is_scored)
        tables = _joined(sources, answers, schema, columns)
        if part_bytes is None:
            _write_file(files.path, _groups(tables, _GROUP_BYTES), schema, needs)
        else:
            with atomic_folder(files.path) as folder:
                groups = _groups(tables, min(_GROUP_BYTES, part_bytes))
                _write_parts(folder, groups, schema, needs, part_bytes)
    files.drop_others()
    return files.path


def _write_parts(
    folder: Path, groups: Iterator[pa.Table], schema: pa.Schema, needs: str, part_bytes: int
) -> None:
    number, group = 0, next(groups, None)
    while number == 0 or group is not None:
        path = folder / part_name(number, ".parquet")
        group = _write_file(path, groups, schema, needs, group, part_bytes)
        number += 1


def _write_file(
    path: Path,
    groups: Iterator[pa.Table],
    schema: pa.Schema,
    needs: str,
    first: pa.Table | None = None,
    max_bytes: int | None = None,
) -> pa.Table | None:
    """One file of `first` and more groups until it has `max_bytes`; the next one, if any."""
    with (
        atomic_file(path, needs) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        group = next(groups, None) if first is None else first
        while group is not None:
            writer.write_table(group)
            group = next(groups, None)
            if max_bytes is not None and file.tell() >= max_bytes:
                break
    return group


def _size(run_dir: Path, sources: Sequence[SourceFile]) -> int:
    """Bytes of what goes in, compressed or not."""
    parts = sum(path.stat().st_size for path in files_of(run_dir, PARTS))
    return parts + sum(source.size_bytes for source in sources)


class _Answers:
    """The answers of all rows in order, some at a time."""

    def __init__(
        self,
        ranges: Sequence[RowRange],
        rejected: pa.Table,
        num_answers: npt.NDArray[np.int64],
        is_scored: npt.NDArray[np.bool_],
    ) -> None:
        self._rejected, self._num_answers, self._is_scored = rejected, num_answers, is_scored
        self._row = 0  # the next to be taken
        self._ranges = iter(ranges)
        self._loaded = self._load(next(self._ranges))  # not yet taken

    def take(self, num_rows: int) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Those of the next rows, and how many each row has. Raises PlanError at the end."""
        mine = slice(self._row, self._row + num_rows)
        counts = np.where(self._is_scored[mine], 1, self._num_answers[mine])
        if len(counts) < num_rows:
            raise self._wrong_number()
        self._row += num_rows
        left = int(counts.sum())
        taken = [self._loaded.slice(0, left)]
        self._loaded = self._loaded.slice(left)
        while left := left - taken[-1].num_rows:
            self._loaded = self._load(next(self._ranges))
            taken.append(self._loaded.slice(0, left))
            self._loaded = self._loaded.slice(left)
        return pa.concat_tables(taken), counts

    def check_end(self) -> None:
        """Raises PlanError where there are answers left."""
        if self._row < len(self._num_answers):
            raise self._wrong_number()

    def _wrong_number(self) -> PlanError:
        return PlanError(f"the inputs do not have the {len(self._num_answers)} rows of the plan")

    def _load(self, part: RowRange) -> pa.Table:
        """The answers of some rows, in order."""
        span, answers = part.rows, part.read()
        row = self._rejected["row"].to_numpy()
        refused = self._rejected.filter(pa.array((row >= span.start) & (row < span.stop)))
        if refused.num_rows:
            refused = rejected_answers(refused).cast(answers.schema)
            answers = one_of_each(pa.concat_tables([answers, refused]))
        counts = self._num_answers[span.start : span.stop]
        first = np.cumsum(counts) - counts
        rows = np.repeat(np.arange(span.start, span.stop), counts)
        sample = np.arange(len(rows)) - np.repeat(first, counts)
        keys = answer_keys(rows, sample.astype(np.int32))
        found = keys_of(answers)
        unknown = np.setdiff1d(found, keys, assume_unique=True) // MOST_ANSWERS
        if len(unknown):
            raise PlanError(
                f"there is an answer for row {unknown[-1]}, but the job has "
                f"{len(self._num_answers)} rows"
            )
        gaps = np.setdiff1d(keys, found, assume_unique=True) // MOST_ANSWERS
        if len(gaps):
            raise PlanError(
                f"row {gaps[0]} has no answer yet",
                "execute the plan again: it continues with what is missing",
            )
        return gathered(answers, self._is_scored[rows])


def _used_columns(run_dir: Path, several: bool) -> list[str]:
    """Columns that most jobs do not need and this one does.

    Args:
        several: whether some row asks for several answers.
    """
    names = [name for name in RARE_OUTPUT_COLUMNS if name != INDEX_COLUMN]
    used = used_columns(run_dir, names)
    return [INDEX_COLUMN, *used] if several else used


def _joined(
    sources: Sequence[SourceFile], answers: _Answers, schema: pa.Schema, names: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of all inputs in order, some at a time, each with its answers."""
    fields = list(schema)
    for columns, num_rows in _originals(sources, fields[: -len(names)]):
        part, counts = answers.take(num_rows)
        if part.num_rows != num_rows:
            places = pa.array(np.repeat(np.arange(num_rows), counts))
            columns = [column.take(places) for column in columns]
        answer_columns = [part[name].combine_chunks() for name in names]
        arrays = [
            _as_type(array, field.type)
            for array, field in zip([*columns, *answer_columns], fields, strict=True)
        ]
        yield pa.Table.from_arrays(arrays, schema=schema)
    answers.check_end()


def _originals(
    sources: Sequence[SourceFile], fields: Sequence[pa.Field]
) -> Iterator[tuple[list[pa.Array], int]]:
    """Batches of all inputs: an array for each of `fields`, and the number of rows."""
    wanted = [field.name for field in fields]
    for source in sources:
        names = source_schema(source).names
        for arrays, num_rows in _batches(source):
            if names == wanted:  # also where a name occurs twice
                yield arrays, num_rows
            else:
                known = dict(zip(names, arrays, strict=True))
                yield [known.get(f.name, pa.nulls(num_rows, f.type)) for f in fields], num_rows


def _batches(source: SourceFile) -> Iterator[tuple[list[pa.Array], int]]:
    location = locate(source.path)
    if source.format == "parquet":
        for batch in read_parquet(location, limit=source.num_rows):
            yield batch.columns, batch.num_rows
    else:
        for rows in read_jsonl(location, limit=source.num_rows):
            yield json_columns(rows, source.columns), len(rows.rows)


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _groups(tables: Iterator[pa.Table], num_bytes: int) -> Iterator[pa.Table]:
    """Consecutive tables put together to row groups of so many bytes in memory."""
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table)
        if sum(table.nbytes for table in pending) >= num_bytes:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)
