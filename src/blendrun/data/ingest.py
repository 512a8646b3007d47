"""From input files to token ids and columns: what the planner and the engine work on.

Streams: the text of a piece is gone when the next is read; tokens go to the store on disk. Large
inputs are parsed, rendered and tokenized in several processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from blendrun.data.columns import ColumnNames, check_clash, check_columns
from blendrun.data.json_kinds import KindTracker
from blendrun.data.output_schema import output_schema
from blendrun.data.parquet_reader import read_schema
from blendrun.data.pieces import Piece, PieceReader, Progress, ReadFile
from blendrun.data.prompts import TextTokenizer
from blendrun.data.row_work import REJECTED_SCHEMA, REQUEST_SCHEMA, RowWork, WorkedRows
from blendrun.data.sampling import SamplingParams
from blendrun.data.sources import SourceFile, expand_paths, format_of
from blendrun.data.token_store import TokenStore, TokenStoreWriter
from blendrun.data.workers import MAX_WORKERS, Workers, num_cpus
from blendrun.errors import InputError

# below this, starting processes costs more than they save
_PARALLEL_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Ingested:
    """Consecutive rows of a job. Request `i` of `requests` has the prompt `store[i]`."""

    num_rows: int  # accepted and rejected
    requests: pa.Table  # REQUEST_SCHEMA
    rejected: pa.Table  # REJECTED_SCHEMA
    store: TokenStore


class Ingester:
    """Reads the first `limit` rows of `paths`; rows that cannot run are set aside with a reason.

    `context_len` counts prompt and answer tokens; a row's `max_tokens` is cut to what it leaves.

    Raises:
        InputError: no readable file, a missing or clashing column, or defaults that are not usable.
    """

    def __init__(
        self,
        paths: Sequence[str],
        columns: ColumnNames,
        tokenizer: TextTokenizer | None,
        defaults: SamplingParams,
        context_len: int,
        vocab_size: int,
        *,
        limit: int | None = None,
        num_workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        defaults.validate(vocab_size)
        if limit is not None and limit < 1:
            raise InputError(f"limit must be at least 1, not {limit}")
        files = expand_paths(paths)
        _check_schemas(files, columns)
        self._columns = columns
        self._work = RowWork(columns, tokenizer, defaults, context_len, vocab_size)
        self._reader = PieceReader(files, columns, limit, progress)
        wanted = num_workers or min(num_cpus(), MAX_WORKERS)
        large = num_workers or sum(path.stat().st_size for path in files) > _PARALLEL_BYTES
        parallel = wanted > 1 and large and _may_hold_text(files, columns)
        self._workers: Workers[Piece, WorkedRows] | None = (
            Workers(self._work, wanted) if parallel else None
        )
        self._trackers: dict[str, KindTracker] = {}  # of each JSONL file
        self._num_rows = 0

    def take(self, store_dir: Path, num_rows: int | None = None) -> Ingested:
        """The next `num_rows` rows, or all that are left, with their tokens in `store_dir`.

        Raises:
            InputError: text without a tokenizer, or a file that is not what its name says.
            BackendError: a worker was killed.
        """
        writer = TokenStoreWriter(store_dir)
        first = self._num_rows
        requests, rejected = [], []
        try:
            pieces = self._reader.take(num_rows)
            for rows in self._work_on(pieces):
                requests.append(_moved(rows.requests, self._num_rows))
                rejected.append(_moved(rows.rejected, self._num_rows))
                writer.append(rows.prompts)
                self._num_rows += rows.num_rows
                self._track(rows)
            store = writer.close()
        except BaseException:
            writer.abort()
            raise
        return Ingested(
            self._num_rows - first,
            pa.Table.from_batches(requests, REQUEST_SCHEMA),
            pa.Table.from_batches(rejected, REJECTED_SCHEMA),
            store,
        )

    def at_end(self) -> bool:
        """Whether all rows have been taken."""
        return self._reader.at_end()

    def sources(self) -> tuple[SourceFile, ...]:
        """The files that rows were taken from, once all are.

        Raises:
            InputError: a column that was named is in no row, or files whose columns do not fit
                together: what could not be written at the end.
        """
        merged = KindTracker()  # one for all files: a column has one type in the output
        for path, tracker in self._trackers.items():
            check_columns(self._columns, tracker.kinds(), path)
            merged.merge(tracker)
        sources = tuple(_source(file, merged) for file in self._reader.files)
        output_schema(sources)
        return sources

    def close(self) -> None:
        self._reader.close()
        if self._workers:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work_on(self, pieces: Iterable[Piece]) -> Iterable[WorkedRows]:
        return self._workers.map(pieces) if self._workers else map(self._work, pieces)

    def _track(self, rows: WorkedRows) -> None:
        if rows.kinds is not None and rows.kinds.kinds():
            tracker = self._trackers.setdefault(rows.path, KindTracker())
            check_clash(tracker.merge(rows.kinds), rows.path)


def _check_schemas(files: Sequence[Path], columns: ColumnNames) -> None:
    """Refuses Parquet files by their columns before any is read."""
    for path in files:
        if format_of(path) != "parquet":
            continue
        names = read_schema(path).names
        check_columns(columns, names, str(path))
        check_clash(names, str(path))
        twice = [name for name in names if name in columns.used() and names.count(name) > 1]
        if twice:
            raise InputError(f"{path} has more than one column {twice[0]!r}", "rename all but one")


def _may_hold_text(files: Sequence[Path], columns: ColumnNames) -> bool:
    """Whether a prompt may have to be parsed, rendered or tokenized."""
    names = {getattr(columns, kind) for kind in columns.prompt_fields()}
    for path in files:
        if format_of(path) != "parquet":
            return True
        fields = [field for field in read_schema(path) if field.name in names]
        if not all(
            pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type)
            for field in fields
        ):
            return True
    return False


def _moved(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The batch with `first` added to its column `row`."""
    rows = batch["row"].to_numpy() + np.int64(first)
    return batch.set_column(batch.schema.get_field_index("row"), "row", pa.array(rows))


def _source(file: ReadFile, tracker: KindTracker) -> SourceFile:
    columns = () if file.format == "parquet" else tuple(tracker.kinds().items())
    return SourceFile(
        str(file.path), file.format, file.num_rows, file.size_bytes, file.sha256.result(), columns
    )
