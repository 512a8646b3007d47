"""The outputs in other formats, made from the Parquet files a batch of rows at a time."""

import base64
import datetime
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.disk import atomic_file, atomic_folder
from blendrun.data.openai_results import CUSTOM_ID, OpenAiResults
from blendrun.data.output_files import parts_of, remove
from blendrun.data.output_schema import source_schema
from blendrun.data.sources import SourceFile
from blendrun.errors import InputError

OutputFormat = Literal["parquet", "jsonl", "openai"]
JSONL_FILE = "outputs.jsonl"
OPENAI_FILES = RESULTS_FILE, ERRORS_FILE = "openai-results.jsonl", "openai-errors.jsonl"
_ROWS = 1024  # in memory as Python objects


@dataclass(frozen=True, slots=True)
class Export:
    """How outputs are written beside the Parquet files."""

    output_format: OutputFormat
    sources: Sequence[SourceFile]
    model: str
    job_id: str
    chat_column: str
    tokens: Callable[[], Detokenizer]  # of the model; called only where tokens are to be named

    def check(self) -> None:
        """Raises InputError where the job's rows do not have what the format needs."""
        names = {name for source in self.sources for name in source_schema(source).names}
        if self.output_format == "openai" and CUSTOM_ID not in names:
            raise InputError(
                f"--output-format openai needs a column {CUSTOM_ID!r}, which no input has",
                "take --output-format jsonl",
            )

    def write(self, outputs: Path) -> Path:
        """Write what is missing; the main file of the format, or the folder of its parts.

        Raises:
            DiskFullError: there is no room for it.
        """
        if self.output_format == "parquet":
            return outputs
        names = (JSONL_FILE,) if self.output_format == "jsonl" else OPENAI_FILES
        made = OpenAiResults(self.model, self.job_id, self.chat_column, self.tokens)
        if outputs.is_file():
            paths = [outputs.with_name(name) for name in names]
            if not paths[0].exists():
                self._write_part(made, outputs, paths)
            return paths[0]
        folders = [outputs.with_name(_folder(name)) for name in names]
        if not folders[0].exists():
            with ExitStack() as stack:  # the first is left last: where it is, the other is
                temps = [stack.enter_context(atomic_folder(folder)) for folder in folders]
                for part in parts_of(outputs):
                    self._write_part(made, part, [temp / f"{part.stem}.jsonl" for temp in temps])
        return folders[0]

    def _write_part(self, made: OpenAiResults, part: Path, paths: Sequence[Path]) -> None:
        if self.output_format == "jsonl":
            with atomic_file(paths[0]) as file:
                for row in self._rows(part):
                    file.write(json_line(row))
            return
        with ExitStack() as stack:
            # left last: where there are results, there are errors
            good, bad = (stack.enter_context(atomic_file(path)) for path in paths)
            for is_error, line in made.lines(self._rows(part)):
                (bad if is_error else good).write(json_line(line))
            is_empty = bad.tell() == 0
        if is_empty:
            paths[1].unlink()

    def _rows(self, outputs: Path) -> Iterator[dict[str, Any]]:
        as_text = self._json_columns()
        with pq.ParquetFile(outputs) as file:
            for batch in file.iter_batches(_ROWS):
                for row in _with_plain_times(batch).to_pylist():
                    for name in as_text:
                        row[name] = row[name] and json.loads(row[name])
                    yield row

    def _json_columns(self) -> list[str]:
        """Columns that hold the JSON text of values."""
        kinds: dict[str, set[str]] = {}
        for source in self.sources:
            columns = source.columns or [(name, "") for name in source_schema(source).names]
            for name, kind in columns:
                kinds.setdefault(name, set()).add(kind)
        return [name for name, found in kinds.items() if found == {"json"}]


def drop_exports(run_dir: Path) -> None:
    """Removes what was made from outputs that are about to be replaced."""
    for name in (JSONL_FILE, *OPENAI_FILES):
        remove(run_dir / name)
        remove(run_dir / _folder(name))


def _folder(name: str) -> str:
    """Where the parts of a file are that is written in parts."""
    return "outputs-jsonl" if name == JSONL_FILE else name.removesuffix(".jsonl")


def _with_plain_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with text for what is counted in nanoseconds, which Python's times cannot hold."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_temporal(field.type) and getattr(field.type, "unit", "") == "ns":
            text = pc.replace_substring(batch.column(index).cast(pa.string()), " ", "T")
            batch = batch.set_column(index, field.name, text)
    return batch


def json_line(value: Any) -> bytes:
    """One line of JSON; what JSON does not know becomes text, and null what is not a number."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_text)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=_as_text)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
