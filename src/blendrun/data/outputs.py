"""The final file: every input row once, in input order, with its own columns and its answer.

Streams the inputs again; holds the answers in memory as Arrow columns, and one row group.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.answers import PLAIN_OUTPUT_COLUMNS, RARE_OUTPUT_COLUMNS, rejected_answers
from blendrun.data.disk import atomic_file
from blendrun.data.jsonl_reader import json_columns, read_jsonl
from blendrun.data.output_schema import output_schema, source_schema
from blendrun.data.parquet_reader import read_parquet
from blendrun.data.results import first_of_each_row, read_answers
from blendrun.data.sources import SourceFile, check_sources
from blendrun.errors import PlanError

OUTPUTS_FILE = "outputs.parquet"
_GROUP_BYTES = 64 * 2**20  # of columns in memory


def write_outputs(
    run_dir: Path, sources: Sequence[SourceFile], num_rows: int, rejected: pa.Table
) -> Path:
    """Writes `outputs.parquet` from the parts of a run, the rejected rows and the inputs.

    Raises:
        PlanError: an input has changed, a row has no answer, or an answer has no row.
        CapacityError: the disk is full.
    """
    check_sources(sources)
    answers = _answers(run_dir, num_rows, rejected)
    used = [name for name in RARE_OUTPUT_COLUMNS if answers[name].null_count < answers.num_rows]
    names = [*PLAIN_OUTPUT_COLUMNS, *used]
    schema = output_schema(sources, names)
    path = run_dir / OUTPUTS_FILE
    with (
        atomic_file(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for group in _groups(_joined(sources, answers.select(names), schema)):
            writer.write_table(group)
    return path


def _answers(run_dir: Path, num_rows: int, rejected: pa.Table) -> pa.Table:
    """The answers of all rows: entry `i` is that of row `i`."""
    answers = read_answers(run_dir)
    if rejected.num_rows:
        refused = rejected_answers(rejected).cast(answers.schema)
        answers = first_of_each_row(pa.concat_tables([answers, refused]))
    rows = answers["row"].to_numpy()
    if len(rows) and (rows[0] < 0 or rows[-1] >= num_rows):
        raise PlanError(f"there is an answer for row {rows[-1]}, but the job has {num_rows} rows")
    if len(rows) < num_rows:
        gaps = np.setdiff1d(np.arange(num_rows), rows, assume_unique=True)
        raise PlanError(
            f"{len(gaps)} of {num_rows} rows have no answer yet, the first is row {gaps[0]}",
            "execute the plan again: it continues with what is missing",
        )
    return answers


def _joined(
    sources: Sequence[SourceFile], answers: pa.Table, schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of all inputs in order, some at a time, each with its answer."""
    fields = list(schema)
    wrong = PlanError(f"the inputs do not have the {answers.num_rows} rows of the plan")
    first = 0
    for columns, num_rows in _originals(sources, fields[: -answers.num_columns]):
        if first + num_rows > answers.num_rows:
            raise wrong
        part = answers.slice(first, num_rows)
        answer_columns = [column.combine_chunks() for column in part.columns]
        arrays = [
            _as_type(array, field.type)
            for array, field in zip([*columns, *answer_columns], fields, strict=True)
        ]
        yield pa.Table.from_arrays(arrays, schema=schema)
        first += num_rows
    if first != answers.num_rows:
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
