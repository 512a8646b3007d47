"""The final file: every input row in input order, with its own columns and its answer.

A row that asks for several answers is there once for each, one after the other.

Streams the inputs again; holds the answers in memory as Arrow columns, and one row group.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.data.answers import (
    MOST_ANSWERS,
    PLAIN_OUTPUT_COLUMNS,
    RARE_OUTPUT_COLUMNS,
    answer_keys,
    rejected_answers,
)
from blendrun.data.disk import atomic_file
from blendrun.data.jsonl_reader import json_columns, read_jsonl
from blendrun.data.output_schema import output_schema, source_schema
from blendrun.data.parquet_reader import read_parquet
from blendrun.data.results import first_of_each, keys_of, read_answers
from blendrun.data.sources import SourceFile, check_sources
from blendrun.errors import PlanError

OUTPUTS_FILE = "outputs.parquet"
_GROUP_BYTES = 64 * 2**20  # of columns in memory


def write_outputs(
    run_dir: Path,
    sources: Sequence[SourceFile],
    num_rows: int,
    rejected: pa.Table,
    num_answers: npt.NDArray[np.int64] | None = None,
) -> Path:
    """Writes `outputs.parquet` from the parts of a run, the rejected rows and the inputs.

    `num_answers` says for every input row how many answers it has, error rows included; without
    it, each has one.

    Raises:
        PlanError: an input has changed, a row has no answer, or an answer has no row.
        CapacityError: the disk is full.
    """
    check_sources(sources)
    if num_answers is None:
        num_answers = np.ones(num_rows, np.int64)
    answers = _answers(run_dir, num_answers, rejected)
    used = [name for name in RARE_OUTPUT_COLUMNS if _is_used(answers[name])]
    names = [*PLAIN_OUTPUT_COLUMNS, *used]
    schema = output_schema(sources, names)
    path = run_dir / OUTPUTS_FILE
    with (
        atomic_file(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for group in _groups(_joined(sources, answers.select(names), num_answers, schema)):
            writer.write_table(group)
    return path


def _answers(run_dir: Path, num_answers: npt.NDArray[np.int64], rejected: pa.Table) -> pa.Table:
    """The answers of all rows, in order."""
    answers = read_answers(run_dir)
    if rejected.num_rows:
        refused = rejected_answers(rejected).cast(answers.schema)
        answers = first_of_each(pa.concat_tables([answers, refused]))
    rows = np.repeat(np.arange(len(num_answers)), num_answers)
    first = np.cumsum(num_answers) - num_answers
    keys = answer_keys(rows, (np.arange(len(rows)) - first[rows]).astype(np.int32))
    found = keys_of(answers)
    unknown = np.setdiff1d(found, keys, assume_unique=True) // MOST_ANSWERS
    if len(unknown):
        raise PlanError(
            f"there is an answer for row {unknown[-1]}, but the job has {len(num_answers)} rows"
        )
    gaps = np.setdiff1d(keys, found, assume_unique=True) // MOST_ANSWERS
    if len(gaps):
        raise PlanError(
            f"{len(gaps)} of {len(keys)} rows have no answer yet, the first is row {gaps[0]}",
            "execute the plan again: it continues with what is missing",
        )
    return answers


def _is_used(column: pa.ChunkedArray) -> bool:
    """Whether a column that most jobs do not need says anything."""
    if column.null_count == len(column):
        return False
    return not pa.types.is_integer(column.type) or bool(pc.max(column).as_py())


def _joined(
    sources: Sequence[SourceFile],
    answers: pa.Table,
    num_answers: npt.NDArray[np.int64],
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    """The rows of all inputs in order, some at a time, each with its answers."""
    fields = list(schema)
    total = len(num_answers)
    wrong = PlanError(f"the inputs do not have the {total} rows of the plan")
    row = first = 0
    for columns, num_rows in _originals(sources, fields[: -answers.num_columns]):
        if row + num_rows > total:
            raise wrong
        counts = num_answers[row : row + num_rows]
        part = answers.slice(first, int(counts.sum()))
        if part.num_rows != num_rows:
            places = pa.array(np.repeat(np.arange(num_rows), counts))
            columns = [column.take(places) for column in columns]
        answer_columns = [column.combine_chunks() for column in part.columns]
        arrays = [
            _as_type(array, field.type)
            for array, field in zip([*columns, *answer_columns], fields, strict=True)
        ]
        yield pa.Table.from_arrays(arrays, schema=schema)
        row += num_rows
        first += part.num_rows
    if row != total:
        raise wrong


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
    path = Path(source.path)
    if source.format == "parquet":
        for batch in read_parquet(path, limit=source.num_rows):
            yield batch.columns, batch.num_rows
    else:
        for lines in read_jsonl(path, limit=source.num_rows):
            yield json_columns(lines, source.columns), len(lines.rows)


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
