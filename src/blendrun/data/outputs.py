"""The final file: every input row once, in input order, with its own columns and its answer.

Streams the inputs again; holds the answers of a span of rows in memory as Arrow columns, and one
row group.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.answers import OUTPUT_COLUMNS, rejected_answers
from blendrun.data.disk import atomic_file
from blendrun.data.json_rows import json_columns, read_jsonl
from blendrun.data.locations import locate
from blendrun.data.output_schema import output_schema, source_schema
from blendrun.data.parquet_reader import read_parquet
from blendrun.data.results import first_of_each_row, read_answers
from blendrun.data.sources import SourceFile, check_sources
from blendrun.errors import PlanError

OUTPUTS_FILE = "outputs.parquet"
_GROUP_BYTES = 64 * 2**20  # of columns in memory


def write_outputs(
    run_dir: Path,
    sources: Sequence[SourceFile],
    num_rows: int,
    rejected: pa.Table,
    spans: Sequence[range] | None = None,
) -> Path:
    """Writes `outputs.parquet` from the parts of a run, the rejected rows and the inputs.

    Args:
        spans: consecutive rows whose answers are in memory at a time; None: all.

    Raises:
        PlanError: an input has changed, a row has no answer, or an answer has no row.
        CapacityError: the disk is full.
    """
    check_sources(sources)
    schema = output_schema(sources)
    answers = _Answers(run_dir, rejected, [range(num_rows)] if spans is None else spans)
    path = run_dir / OUTPUTS_FILE
    with (
        atomic_file(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for group in _groups(_joined(sources, answers, schema)):
            writer.write_table(group)
    return path


class _Answers:
    """The answers of all rows in order, some at a time."""

    def __init__(self, run_dir: Path, rejected: pa.Table, spans: Sequence[range]) -> None:
        self._run_dir, self._rejected = run_dir, rejected
        self._num_rows = spans[-1].stop
        self._spans = iter(spans)
        self._loaded = self._load(next(self._spans))  # not yet taken

    def take(self, num_rows: int) -> pa.Table:
        """Those of the next rows. Raises PlanError where there are not so many."""
        taken = []
        while num_rows:
            if not self._loaded.num_rows:
                span = next(self._spans, None)
                if span is None:
                    raise self._wrong_number()
                self._loaded = self._load(span)
            taken.append(self._loaded.slice(0, num_rows))
            self._loaded = self._loaded.slice(num_rows)
            num_rows -= taken[-1].num_rows
        return pa.concat_tables(taken)

    def check_end(self) -> None:
        """Raises PlanError where there are answers left."""
        if self._loaded.num_rows or next(self._spans, None) is not None:
            raise self._wrong_number()

    def _wrong_number(self) -> PlanError:
        return PlanError(f"the inputs do not have the {self._num_rows} rows of the plan")

    def _load(self, span: range) -> pa.Table:
        """Entry `i` is the answer of row `span.start + i`."""
        whole = span == range(self._num_rows)
        answers = read_answers(self._run_dir, None if whole else span)
        row = self._rejected["row"].to_numpy()
        refused = self._rejected.filter(pa.array((row >= span.start) & (row < span.stop)))
        if refused.num_rows:
            refused = rejected_answers(refused).cast(answers.schema)
            answers = first_of_each_row(pa.concat_tables([answers, refused]))
        rows = answers["row"].to_numpy()
        if len(rows) and (rows[0] < span.start or rows[-1] >= span.stop):
            raise PlanError(
                f"there is an answer for row {rows[-1]}, but the job has {self._num_rows} rows"
            )
        if len(rows) < len(span):
            gaps = np.setdiff1d(np.arange(span.start, span.stop), rows, assume_unique=True)
            raise PlanError(
                f"{len(gaps)} of {len(span)} rows have no answer yet, the first is row {gaps[0]}",
                "execute the plan again: it continues with what is missing",
            )
        return answers


def _joined(
    sources: Sequence[SourceFile], answers: _Answers, schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of all inputs in order, some at a time, each with its answer."""
    fields = list(schema)
    for columns, num_rows in _originals(sources, fields[: -len(OUTPUT_COLUMNS)]):
        part = answers.take(num_rows)
        answer_columns = [part[name].combine_chunks() for name in OUTPUT_COLUMNS]
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


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Consecutive tables put together to row groups."""
    pending: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        pending.append(table)
        num_bytes += table.nbytes
        if num_bytes >= _GROUP_BYTES:
            yield pa.concat_tables(pending)
            pending, num_bytes = [], 0
    if pending:
        yield pa.concat_tables(pending)
