"""Which Arrow type a JSON column gets, from the JSON kinds that were seen in it.

A string is a string: nothing is guessed from text. A column that no plain type holds exactly
keeps each value as its raw JSON text. Where only strings can be used, they stay as they are.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

ARROW_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "int_list": pa.list_(pa.int64()),
    "messages": pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])),
    "json": pa.string(),  # raw JSON text of the value
    "text": pa.string(),  # a string as it is, else raw JSON text
}

# INT53: integers that a float64 holds exactly, so that they may stand among floats.
_NULL, _BOOL, _INT53, _INT64, _FLOAT, _STRING, _EMPTY, _INTS, _CHAT, _OTHER = (
    1 << bit for bit in range(10)
)
_RESOLUTIONS = (
    (0, "null"),
    (_BOOL, "bool"),
    (_STRING, "string"),
    (_INT53 | _INT64, "int64"),
    (_INT53 | _FLOAT, "float64"),
)


class KindTracker:
    """Collects, column by column in order of first sight, the kinds of value seen."""

    def __init__(self) -> None:
        self._masks: dict[str, int] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Notes the values of one row."""
        masks = self._masks
        for name, value in row.items():
            masks[name] = masks.get(name, 0) | _bit(value)

    def merge(self, other: "KindTracker") -> list[str]:
        """Notes what `other`, of later rows, has seen; the names that are new here."""
        new = [name for name in other._masks if name not in self._masks]
        for name, mask in other._masks.items():
            self._masks[name] = self._masks.get(name, 0) | mask
        return new

    def kinds(self, texts: Collection[str] = ()) -> dict[str, str]:
        """Column name to kind, a key of `ARROW_TYPES`.

        Rows whose value in a column of `texts` is neither a string nor token ids are error rows.
        """
        return {
            name: "text" if name in texts and _is_text(mask) else _resolve(mask)
            for name, mask in self._masks.items()
        }


def _is_text(mask: int) -> bool:
    """Whether all that can be used are strings, and there is something else."""
    return bool(mask & _STRING and mask & ~(_STRING | _NULL) and not mask & _INTS)


def _resolve(mask: int) -> str:
    seen = mask & ~_NULL
    for allowed, kind in _RESOLUTIONS:
        if not seen & ~allowed:
            return kind
    if not seen & ~(_EMPTY | _INTS) and seen & _INTS:
        return "int_list"
    if not seen & ~(_EMPTY | _CHAT) and seen & _CHAT:
        return "messages"
    return "json"


def _bit(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return _STRING
    if value is None:
        return _NULL
    if kind is bool:
        return _BOOL
    if kind is int:
        if -(2**53) <= value <= 2**53:
            return _INT53
        return _INT64 if -(2**63) <= value < 2**63 else _OTHER
    if kind is float:
        return _FLOAT if math.isfinite(value) else _OTHER
    return _list_bit(value) if kind is list else _OTHER


def _list_bit(values: list[Any]) -> int:
    if not values:
        return _EMPTY
    kinds = set(map(type, values))
    if kinds == {int}:
        return _INTS if min(values) >= -(2**63) and max(values) < 2**63 else _OTHER
    if kinds == {dict} and all(map(_is_plain_message, values)):
        return _CHAT
    return _OTHER


def _is_plain_message(value: dict[str, Any]) -> bool:
    return (
        value.keys() == {"role", "content"}
        and type(value["role"]) is str
        and (value["content"] is None or type(value["content"]) is str)
    )
