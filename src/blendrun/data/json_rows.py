"""Lines of JSON as rows: a line that is no JSON object is a row with an error.

Knows JSON, not which column means what.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pyarrow as pa

from blendrun.data.json_kinds import ARROW_TYPES
from blendrun.data.jsonl_reader import Lines, read_lines
from blendrun.data.locations import Location
from blendrun.data.partitions import partitions_of
from blendrun.errors import PlanError

_SHOWN_BYTES = 1000  # of a bad line
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class JsonBatch:
    """Consecutive rows with their fields; a row that is bad has none but the `defaults`."""

    lines: Lines
    rows: list[dict[str, Any] | None]  # None where bad
    defaults: Mapping[str, str | None]  # fields that rows have where they do not set them
    errors: dict[int, str] = field(default_factory=dict)  # index in this batch to reason
    mended: set[int] = field(default_factory=set)  # rows that held half a surrogate pair


def read_jsonl(
    location: Location, limit: int | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[JsonBatch]:
    """Rows of the file in batches, the first `limit` of them, as `read_lines` reads them.

    Columns that stand in the names of folders are fields of every row that does not set them.
    """
    defaults = partitions_of(location)
    for lines in read_lines(location, limit, progress):
        yield parse_lines(lines, defaults)


def parse_lines(lines: Lines, defaults: Mapping[str, str | None] | None = None) -> JsonBatch:
    """The values of some lines; a line that is no JSON object becomes an error.

    Half of a surrogate pair, which no text can hold, becomes U+FFFD; `mended` has the row.
    """
    batch = JsonBatch(lines, [], defaults or {})
    decode = _FAST.decode
    for index, content in enumerate(lines.contents):
        row = None
        try:
            row = decode(content)
        except (msgspec.DecodeError, RecursionError, ValueError):
            row = _parse_slowly(batch, index, content)
        else:
            if type(row) is not dict:
                batch.errors[index] = _with_line(_not_an_object(row), content)
                row = None
        batch.rows.append(row)
    if defaults:
        for row in batch.rows:
            if row is not None:
                row.update(_missing(row, defaults))
    return batch


def json_columns(batch: JsonBatch, columns: tuple[tuple[str, str], ...]) -> list[pa.Array]:
    """The batch as Arrow arrays of the declared (name, kind); bad rows have only the defaults.

    Raises:
        PlanError: a value is not of the declared kind.
    """
    raw: list[dict[str, str]] = []
    if any(kind in ("json", "text") for _, kind in columns):
        raw = [_raw(batch, index) for index in range(len(batch.rows))]
    arrays = []
    for name, kind in columns:
        default = batch.defaults.get(name)
        values = [default if row is None else row.get(name) for row in batch.rows]
        if kind in ("json", "text"):
            values = [
                v if v is None or (kind == "text" and type(v) is str) else raw[i][name]
                for i, v in enumerate(values)
            ]
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
        members[_SURROGATE.sub("\ufffd", name)] = text[start:end]
        position = _skip(text, end)
        position += text[position] == ","
    return members


def _raw(batch: JsonBatch, index: int) -> dict[str, str]:
    """JSON text of every field of a row."""
    defaults = {name: json.dumps(value) for name, value in batch.defaults.items()}
    if batch.rows[index] is None:
        return defaults
    return defaults | raw_members(batch.lines.contents[index].decode("utf-8"))


def _missing(row: dict[str, Any], defaults: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: value for name, value in defaults.items() if name not in row}


def _parse_slowly(batch: JsonBatch, index: int, content: bytes) -> dict[str, Any] | None:
    """What the fast parser refuses: says why, and mends texts with half of a surrogate pair."""
    try:
        value = _DECODER.decode(content.decode("utf-8"))
        if type(value) is not dict:
            raise ValueError(_not_an_object(value))
        mended = _mended(value)
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start + 1} of the line"
    except json.JSONDecodeError as error:
        why = f"{error.msg} at column {error.pos + 1}"
    except (ValueError, RecursionError) as error:
        why = str(error)
    else:
        if mended is None:
            return value
        batch.mended.add(index)
        return cast(dict[str, Any], mended)
    batch.errors[index] = _with_line(why, content)
    return None


def _mended(value: dict[str, Any]) -> Any | None:
    """The value with U+FFFD for each half of a surrogate pair; None where it holds none."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return _replaced(value)
    return None


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    if isinstance(value, dict):
        return {_replaced(name): _replaced(item) for name, item in value.items()}
    return value


def _not_an_object(value: Any) -> str:
    return f"expected an object, found {_JSON_NAMES[type(value)]}"


def _with_line(why: str, content: bytes) -> str:
    """The reason with the line itself, as far as it can be shown."""
    shown = content[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    more = len(content) - _SHOWN_BYTES
    return f"{why}; the line: {shown}" + (f" … and {more:,} bytes" if more > 0 else "")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


_FAST = msgspec.json.Decoder()  # strict, and exact with whole numbers of any size
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_JSON_NAMES = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
