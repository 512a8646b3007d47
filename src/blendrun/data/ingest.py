"""From input files to token ids and columns: what the planner and the engine work on.

Streams: the text of a piece is gone when the next is read; tokens go to the store on disk. Large
inputs are parsed, rendered and tokenized in several processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from blendrun.data.columns import ColumnNames, check_clash
from blendrun.data.input_checks import check_file, check_schemas, may_hold_text, with_template
from blendrun.data.input_options import InputOptions
from blendrun.data.json_kinds import KindTracker
from blendrun.data.locations import size_of
from blendrun.data.notes import Notes
from blendrun.data.openai_batch import is_batch_file
from blendrun.data.output_schema import output_schema
from blendrun.data.pieces import Piece, PieceReader, Progress, ReadFile
from blendrun.data.prompts import TextTokenizer
from blendrun.data.row_ids import SeenIds
from blendrun.data.row_work import REQUEST_SCHEMA, RowWork
from blendrun.data.sampling import SamplingParams
from blendrun.data.sources import SourceFile, expand_paths
from blendrun.data.token_store import TokenStore, TokenStoreWriter
from blendrun.data.worked_rows import REJECTED_SCHEMA, WorkedRows
from blendrun.data.workers import MAX_WORKERS, Workers, num_cpus
from blendrun.errors import InputError

# below this, the tokenizer's own threads beside one process of Python are as fast
_PARALLEL_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Ingested:
    """Consecutive rows of a job. Request `i` of `requests` has the prompt `store[i]`."""

    num_rows: int  # accepted and rejected
    requests: pa.Table  # REQUEST_SCHEMA
    rejected: pa.Table  # REJECTED_SCHEMA
    store: TokenStore
    notes: tuple[str, ...] = ()  # what is worth telling about rows that run


class Ingester:
    """Reads the first `limit` rows of `paths`; rows that cannot run are set aside with a reason.

    `context_len` counts prompt and answer tokens; a row's `max_tokens` is cut to what it leaves.

    Raises:
        InputError: no readable file, a missing or clashing column, or a template or defaults that
            are not usable.
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
        options: InputOptions = InputOptions(),  # noqa: B008 (frozen)
        limit: int | None = None,
        num_workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        defaults.validate(vocab_size)
        if limit is not None and limit < 1:
            raise InputError(f"limit must be at least 1, not {limit}")
        files = expand_paths(paths)
        columns = with_template(columns, options)
        check_schemas(files, columns, options)
        self._columns, self._options = columns, options
        self._work = RowWork(columns, tokenizer, defaults, context_len, vocab_size, options)
        self._reader = PieceReader(files, columns, limit, progress)
        wanted = num_workers or min(num_cpus(), MAX_WORKERS)
        large = num_workers or sum(map(size_of, files)) > _PARALLEL_BYTES
        parallel = wanted > 1 and large and may_hold_text(files, columns)
        self._workers: Workers[Piece, WorkedRows] | None = (
            Workers(self._work, wanted) if parallel else None
        )
        self._trackers: dict[str, KindTracker] = {}  # of each JSONL file
        self._num_rows = 0
        self._ids, self._custom_ids = SeenIds(), SeenIds()  # of the job; of the file
        self._path = ""  # of the file that `_custom_ids` are of

    def take(self, store_dir: Path, num_rows: int | None = None) -> Ingested:
        """The next `num_rows` rows, or all that are left, with their tokens in `store_dir`.

        Raises:
            InputError: text without a tokenizer, a file that is not what its name says, or, if
                options are strict, a row that cannot run.
            BackendError: a worker was killed.
        """
        writer = TokenStoreWriter(store_dir)
        first = self._num_rows
        requests, rejected = [], []
        notes = Notes()
        try:
            pieces = self._reader.take(num_rows)
            for rows in map(self._checked, self._work_on(pieces)):
                requests.append(_moved(rows.requests, self._num_rows))
                rejected.append(_moved(rows.rejected, self._num_rows))
                writer.append(rows.prompts)
                notes.merge(rows.notes)
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
            tuple(notes.texts()),
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
            check_file(self._columns, self._options, tracker.kinds(), path)
            merged.merge(tracker)
        texts = list(self._columns.text_columns())
        if is_batch_file(merged.kinds(), self._columns, self._options.format):
            texts.append("custom_id")
        kinds = tuple(merged.kinds(texts).items())
        sources = tuple(_source(file, kinds) for file in self._reader.files)
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

    def _checked(self, rows: WorkedRows) -> WorkedRows:
        """The rows after what takes a look at those before them."""
        if rows.path != self._path:
            self._path, self._custom_ids = rows.path, SeenIds()
        repeated = self._custom_ids.repeated(rows.custom_ids)
        if repeated:
            rows = rows.without(
                repeated, ("bad_request", "custom_id: an earlier line of the file has the same")
            )
        if self._columns.id is not None:
            known = dict(rows.ids)
            for row in self._ids.repeated(rows.ids):
                rows.notes.add("repeated_id", known[row])
            rows.notes.add("no_id", count=rows.num_rows - len(known))
        if self._options.strict and rows.rejected.num_rows:
            raise _refused(rows.rejected.slice(0, 1).to_pylist()[0])
        return rows

    def _track(self, rows: WorkedRows) -> None:
        if rows.kinds is not None and rows.kinds.kinds():
            tracker = self._trackers.setdefault(rows.path, KindTracker())
            check_clash(tracker.merge(rows.kinds), rows.path)


def _refused(row: dict[str, Any]) -> InputError:
    """What strict reading says of a rejected row."""
    return InputError(
        f"{row['file']}, line {row['line']}: {row['code']}: {row['message']}",
        "mend the row, or leave out --strict to set such rows aside",
    )


def _moved(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The batch with `first` added to its column `row`."""
    rows = batch["row"].to_numpy() + np.int64(first)
    return batch.set_column(batch.schema.get_field_index("row"), "row", pa.array(rows))


def _source(file: ReadFile, kinds: tuple[tuple[str, str], ...]) -> SourceFile:
    return SourceFile(
        str(file.path),
        file.format,
        file.num_rows,
        file.size_bytes,
        file.sha256.result(),
        () if file.format == "parquet" else kinds,
    )
