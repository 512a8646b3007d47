"""What must hold of any bytes that are read as JSON lines, held against the standard library."""

import json
import math
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa

from blendrun.data.json_kinds import KindTracker
from blendrun.data.json_rows import json_columns, raw_members, read_jsonl

_DEFAULTS = {"shard": "007"}


@dataclass(frozen=True)
class _File:
    """A file in memory, in a folder that is a column."""

    content: bytes
    name = "rows.jsonl"
    parts = ("", "shard=007", name)

    def open(self, _mode: str) -> BytesIO:
        return BytesIO(self.content)


def check(content: bytes) -> int:
    """Reads `content`; the number of rows.

    Raises:
        AssertionError: a row was lost, made up, or changed.
    """
    expected = _expected_lines(content)
    batches = list(read_jsonl(_File(content)))
    numbers = [number for batch in batches for number in batch.lines.numbers]
    assert numbers == [number for number, _ in expected], "a row was lost or made up"
    rows = [row for batch in batches for row in batch.rows]
    for (_, line), row in zip(expected, rows, strict=True):
        _check_row(line, row)
    tracker = KindTracker()
    for row in filter(None, rows):
        tracker.add(row)
    columns = tuple(tracker.kinds().items())
    for batch in batches:
        assert set(batch.errors) == {i for i, row in enumerate(batch.rows) if row is None}
        arrays = json_columns(batch, columns)
        for (name, kind), array in zip(columns, arrays, strict=True):
            _check_column(batch.rows, name, kind, array)
    return len(rows)


def _expected_lines(content: bytes) -> list[tuple[int, bytes]]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    stripped = ((number, line.strip(b" \t\r")) for number, line in enumerate(lines, start=1))
    return [(number, line) for number, line in stripped if line]


def _check_row(line: bytes, row: dict[str, Any] | None) -> None:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        assert row is None, f"{line!r} became {row!r}"
        return
    assert row is not None, f"{line!r} was refused"
    wanted = _DEFAULTS | _without_halves(value)
    assert same(row, wanted), f"{line!r} became {row!r}"
    members = raw_members(line.decode("utf-8"))
    parsed = {name: _without_halves(json.loads(text)) for name, text in members.items()}
    assert same(parsed, _without_halves(value)), f"{line!r} has the members {members!r}"


def _check_column(rows: list[dict[str, Any] | None], name: str, kind: str, array: pa.Array) -> None:
    for row, value in zip(rows, array.to_pylist(), strict=True):
        wanted = _DEFAULTS.get(name) if row is None else row.get(name)
        if kind == "json" and value is not None:
            value = _without_halves(json.loads(value))
        assert same(value, wanted, exact=kind == "json"), f"{name}: {wanted!r} became {value!r}"


def same(one: Any, other: Any, exact: bool = True) -> bool:
    """Equal in value, and, if `exact`, in type (1 is not true, nor 1.0)."""
    if exact and type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k], exact) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b, exact) for a, b in pairs)
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, list):
        return [_without_halves(item) for item in value]
    if isinstance(value, dict):
        return {_without_halves(k): _without_halves(v) for k, v in value.items()}
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)
