"""JSON Lines, read in binary and parsed line by line; a bad line is a row with an error.

Knows lines and JSON, not which column means what. Memory: one batch of lines.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from blendrun.data.json_kinds import ARROW_TYPES
from blendrun.errors import InputError, PlanError

_BATCH_ROWS = 4096
_BATCH_BYTES = 8 * 2**20
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines that are rows, without the blanks around them; lists of equal length."""

    numbers: list[int] = field(default_factory=list)  # physical line number, from 1
    contents: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def split(self, at: int) -> tuple["Lines", "Lines"]:
        """The first `at` lines, and the others."""
        numbers, contents = self.numbers, self.contents
        return Lines(numbers[:at], contents[:at]), Lines(numbers[at:], contents[at:])


@dataclass(frozen=True, slots=True)
class JsonBatch:
    """Consecutive rows; lists of equal length, one entry per row."""

    lines: list[int] = field(default_factory=list)  # physical line number, from 1
    texts: list[str] = field(default_factory=list)  # JSON text, "" where the row is bad
    rows: list[dict[str, Any] | None] = field(default_factory=list)  # None where bad
    errors: dict[int, str] = field(default_factory=dict)  # index in this batch to reason


def read_jsonl(
    path: Path, limit: int | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[JsonBatch]:
    """Rows of the file in batches, the first `limit` of them, as `read_lines` reads them."""
    return map(parse_lines, read_lines(path, limit, progress))


def read_lines(
    path: Path, limit: int | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[Lines]:
    """Lines of the file in batches, the first `limit` of them; blank lines are not rows.

    `progress` is told the bytes of the file read so far, after each batch.

    Raises:
        InputError: the file cannot be opened or decompressed.
    """
    try:
        with path.open("rb") as raw:
            packed = path.name.lower().endswith(".gz")
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            for batch in _batches(cast(BinaryIO, stream), limit):
                if progress:
                    progress(raw.tell())
                yield batch
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def parse_lines(lines: Lines) -> JsonBatch:
    """The values of some lines; a line that is no JSON object becomes an error."""
    batch = JsonBatch()
    for number, content in zip(lines.numbers, lines.contents, strict=True):
        _add(batch, number, content)
    return batch


def json_columns(batch: JsonBatch, columns: tuple[tuple[str, str], ...]) -> list[pa.Array]:
    """The batch as Arrow arrays of the declared (name, kind); bad rows are null throughout.

    Raises:
        PlanError: a value is not of the declared kind.
    """
    raw: list[dict[str, str]] = []
    if any(kind == "json" for _, kind in columns):
        raw = [raw_members(text) if text else {} for text in batch.texts]
    arrays = []
    for name, kind in columns:
        values = [None if row is None else row.get(name) for row in batch.rows]
        if kind == "json":
            values = [None if v is None else raw[i][name] for i, v in enumerate(values)]
        try:
            arrays.append(pa.array(values, ARROW_TYPES[kind]))
        except (pa.ArrowException, KeyError) as error:
            raise PlanError(f"column {name!r} is not of kind {kind!r}: {error}") from error
    return arrays


def raw_members(text: str) -> dict[str, str]:
    """The members of a valid JSON object, each value as the text that stands there."""
    members: dict[str, str] = {}
    position = text.index("{") + 1
    while text[position := _skip(text, position)] != "}":
        name, position = json.decoder.scanstring(text, position + 1)  # type: ignore[attr-defined]
        start = _skip(text, _skip(text, position) + 1)
        _, end = _DECODER.raw_decode(text, start)
        members[name] = text[start:end]
        position = _skip(text, end)
        position += text[position] == ","
    return members


def _batches(stream: BinaryIO, limit: int | None) -> Iterator[Lines]:
    batch, num_bytes, num_rows = Lines(), 0, 0
    for number, line in enumerate(stream, start=1):
        if limit is not None and num_rows == limit:
            break
        content = (line.removeprefix(_BOM) if number == 1 else line).strip(_BLANK)
        if not content:
            continue
        batch.numbers.append(number)
        batch.contents.append(content)
        num_rows += 1
        num_bytes += len(content)
        if len(batch) >= _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = Lines(), 0
    if len(batch):
        yield batch


def _add(batch: JsonBatch, line: int, content: bytes) -> None:
    text = ""
    row = None
    try:
        text = content.decode("utf-8")
        row = _parse(text, content)
    except UnicodeDecodeError as error:
        batch.errors[len(batch.rows)] = f"not UTF-8 at byte {error.start + 1} of the line"
    except json.JSONDecodeError as error:
        batch.errors[len(batch.rows)] = f"{error.msg} at column {error.pos + 1}"
    except (ValueError, RecursionError) as error:
        batch.errors[len(batch.rows)] = str(error)
    batch.lines.append(line)
    batch.texts.append("" if row is None else text)
    batch.rows.append(row)


def _parse(text: str, content: bytes) -> dict[str, Any]:
    value = _DECODER.decode(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {_JSON_NAMES[type(value)]}")
    if _SURROGATE_ESCAPE.search(content) and _has_lone_surrogate(value):
        raise ValueError("half of a surrogate pair, which no text can hold")
    return value


def _has_lone_surrogate(value: dict[str, Any]) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_JSON_NAMES = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
