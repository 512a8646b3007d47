"""What an answer must look like: JSON of a schema, a regular expression, or a grammar.

Four columns may say it, in their usual shapes; a row has one at most. Whether a grammar compiles is
asked of llguidance where it is installed; planning does not need it.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from blendrun.data.rows import BadRowError, Rejections, RowBatch
from blendrun.errors import InputError

Structure = tuple[str, str]  # kind, as llguidance names it, and text
PLAIN: Structure = ("text", "")  # anything; overrides a default
STRUCTURE_TYPE = pa.struct([("kind", pa.string()), ("text", pa.string())])
_ANY_OBJECT = '{"type": "object"}'
_MOST_SHOWN = 200  # characters of a message


def _response_format(value: Any) -> Structure | None:
    """OpenAI's object, its JSON text, or the name of a type that needs nothing more."""
    if isinstance(value, str):
        value = {"type": value} if value in ("text", "json_object") else _parsed(value)
    if not isinstance(value, Mapping):
        return None
    if value.get("type") == "text":
        return PLAIN
    if value.get("type") == "json_object":
        return ("json_schema", _ANY_OBJECT)
    inner = value.get("json_schema")
    if value.get("type") == "json_schema" and isinstance(inner, Mapping) and "schema" in inner:
        return _json_schema(inner["schema"])
    return None


def _json_schema(value: Any) -> Structure | None:
    if isinstance(value, Mapping):
        try:
            value = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            return None
    return ("json_schema", value) if isinstance(value, str) else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(kind: str) -> Callable[[Any], Structure | None]:
    return lambda value: (kind, value) if isinstance(value, str) else None


_CONVERT: dict[str, tuple[Callable[[Any], Structure | None], str]] = {
    "response_format": (_response_format, "an object of type text, json_object or json_schema"),
    "json_schema": (_json_schema, "an object or its JSON text"),
    "regex": (_text("regex"), "text"),
    "grammar": (_text("grammar"), "text"),
}
STRUCTURE_COLUMNS = tuple(_CONVERT)


def read_structures(
    batch: RowBatch, default: Structure | None, rejections: Rejections
) -> list[Structure | None]:
    """What each row asks for; rows that ask wrongly go to `rejections`. Empty if none can ask."""
    names = [name for name in STRUCTURE_COLUMNS if name in batch.columns]
    if not names and default is None:
        return []
    found: list[Structure | None] = [default] * len(batch)
    for row in range(len(batch) if names else 0):
        given = {name: batch.columns[name][row] for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        if not given or row in rejections:
            continue
        try:
            structure = structure_of(given)
        except BadRowError as error:
            rejections[row] = (error.code, error.message)
        else:
            found[row] = None if structure == PLAIN else structure
    return found


def default_structure(given: Mapping[str, Any]) -> Structure | None:
    """What rows without columns of their own ask for. Raises InputError."""
    given = {name: value for name, value in given.items() if value is not None}
    try:
        structure = structure_of(given) if given else PLAIN
    except BadRowError as error:
        raise InputError(error.message) from None
    return None if structure == PLAIN else structure


def structure_of(given: Mapping[str, Any]) -> Structure:
    """The one thing that `given`, at least one value by column, asks for. Raises BadRowError."""
    asked: dict[str, Structure] = {}
    for name, value in given.items():
        convert, wanted = _CONVERT[name]
        structure = convert(value)
        if structure is None:
            shown = repr(value)[:80]
            raise BadRowError("bad_parameter", f"{name} must be {wanted}, not {shown}")
        if structure != PLAIN:
            asked[name] = structure
    if len(asked) > 1:
        raise BadRowError("bad_parameter", f"{' and '.join(asked)} are set; a row has one of them")
    for name, structure in asked.items():
        wrong = problem(structure)
        if wrong is not None:
            raise BadRowError("bad_schema", f"{name}: {wrong}")
    return next(iter(asked.values()), PLAIN)


@lru_cache(maxsize=4096)
def problem(structure: Structure) -> str | None:
    """Why it cannot be used, as far as can be told; None where it can."""
    kind, text = structure
    if kind == "json_schema":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
    try:
        from llguidance import LLMatcher, grammar_from
    except ImportError:
        return None
    try:
        return short(LLMatcher.validate_grammar(grammar_from(kind, text))) or None
    except ValueError as error:
        return short(str(error))


def short(message: str) -> str:
    """A compiler's message on one line."""
    line = " ".join(message.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}..."
