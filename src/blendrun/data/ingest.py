"""From input files to token ids and columns: what the planner and the engine work on.

Streams: the text of a batch is gone when the next is read; tokens go to the store on disk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from blendrun.data.batch import REJECTED_SCHEMA, REQUEST_SCHEMA, BatchIngester
from blendrun.data.columns import ColumnNames, check_clash, check_columns
from blendrun.data.json_kinds import KindTracker
from blendrun.data.jsonl_reader import read_jsonl
from blendrun.data.output_schema import output_schema
from blendrun.data.parquet_reader import read_parquet, read_schema
from blendrun.data.prompts import TextTokenizer
from blendrun.data.rows import RowBatch, rows_from_arrow, rows_from_json
from blendrun.data.sampling import SamplingParams
from blendrun.data.sources import SourceFile, expand_paths, format_of, hash_file
from blendrun.data.token_store import TokenStore, TokenStoreWriter
from blendrun.errors import InputError

Progress = Callable[[int, int], None]  # bytes of the input files read so far, and in all


@dataclass(frozen=True, slots=True, eq=False)
class Ingested:
    """The rows of a job. Request `i` of `requests` has the prompt `store[i]`."""

    sources: tuple[SourceFile, ...]
    num_rows: int  # accepted and rejected
    requests: pa.Table  # REQUEST_SCHEMA
    rejected: pa.Table  # REJECTED_SCHEMA
    store: TokenStore


def ingest(
    paths: Sequence[str],
    columns: ColumnNames,
    tokenizer: TextTokenizer | None,
    defaults: SamplingParams,
    context_len: int,
    vocab_size: int,
    store_dir: Path,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Ingested:
    """Reads the first `limit` rows of `paths`; rows that cannot run are set aside with a reason.

    `context_len` counts prompt and answer tokens; a row's `max_tokens` is cut to what it leaves.

    Raises:
        InputError: no readable file, a missing or clashing column, text without a tokenizer, or
            files whose columns do not fit together.
    """
    defaults.validate()
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, not {limit}")
    files = expand_paths(paths)
    _check_schemas(files, columns)
    sizes = [path.stat().st_size for path in files]
    writer = TokenStoreWriter(store_dir)
    try:
        rows = BatchIngester(columns, tokenizer, defaults, context_len, vocab_size, writer)
        tracker = KindTracker()  # one for all files: a column has one type in the output
        sources: list[SourceFile] = []
        for number, path in enumerate(files):
            left = None if limit is None else limit - rows.num_rows
            if left == 0:
                break
            before = sum(sizes[:number])
            report = _file_progress(progress, before, sum(sizes))
            sources.append(_read_file(path, left, columns, tracker, rows, report))
        sources = [_with_kinds(source, tracker) for source in sources]
        output_schema(sources)  # refuses now what could not be written at the end
        store = writer.close()
    except BaseException:
        writer.abort()
        raise
    if progress:
        progress(sum(sizes), sum(sizes))
    requests = pa.Table.from_batches(rows.requests, REQUEST_SCHEMA)
    rejected = pa.Table.from_batches(rows.rejected, REJECTED_SCHEMA)
    return Ingested(tuple(sources), rows.num_rows, requests, rejected, store)


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


def _read_file(
    path: Path,
    limit: int | None,
    columns: ColumnNames,
    tracker: KindTracker,
    rows: BatchIngester,
    report: Callable[[int], None] | None,
) -> SourceFile:
    size_bytes, sha256 = path.stat().st_size, hash_file(path)
    before = rows.num_rows
    kind = format_of(path)
    if kind == "parquet":
        batches = _parquet_rows(path, limit, columns, report)
    else:
        batches = _jsonl_rows(path, limit, columns, tracker, report)
    for batch in batches:
        rows.add(str(path), batch)
    return SourceFile(str(path), kind, rows.num_rows - before, size_bytes, sha256)


def _parquet_rows(
    path: Path, limit: int | None, columns: ColumnNames, report: Callable[[int], None] | None
) -> Iterator[RowBatch]:
    used = columns.used()
    present = [name for name in read_schema(path).names if name in used]
    first = 0
    for batch in read_parquet(path, present, limit, report):
        yield rows_from_arrow(batch, first, used)
        first += batch.num_rows


def _jsonl_rows(
    path: Path,
    limit: int | None,
    columns: ColumnNames,
    tracker: KindTracker,
    report: Callable[[int], None] | None,
) -> Iterator[RowBatch]:
    used = columns.used()
    names: dict[str, None] = {}  # ordered set
    for batch in read_jsonl(path, limit, report):
        for row in batch.rows:
            if row is not None:
                tracker.add(row)
                if not row.keys() <= names.keys():
                    check_clash(row, str(path))
                    names |= dict.fromkeys(row)
        yield rows_from_json(batch, used)
    if names:
        check_columns(columns, names, str(path))


def _with_kinds(source: SourceFile, tracker: KindTracker) -> SourceFile:
    if source.format == "parquet":
        return source
    return replace(source, columns=tuple(tracker.kinds().items()))


def _file_progress(
    progress: Progress | None, before: int, total: int
) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda num_bytes: progress(before + num_bytes, total)
