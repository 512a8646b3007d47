"""What an answer must look like: the shapes that say it, and what is refused."""

import json

import pyarrow as pa
import pytest

from blendrun.data import structures
from blendrun.data.rows import RowBatch
from blendrun.data.structures import default_structure, problem
from blendrun.errors import InputError

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": None}}}
TEXT = json.dumps(SCHEMA)
ANY_OBJECT = ("json_schema", '{"type": "object"}')


def read(default=None, **columns):
    """What each row asks for, and the rows set aside."""
    num_rows = len(next(iter(columns.values())))
    rejections = {}
    found = structures.read_structures(
        RowBatch(range(1, num_rows + 1), columns, {}), default, rejections
    )
    return found, rejections


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("json_schema", SCHEMA, ("json_schema", TEXT)),
        ("json_schema", TEXT, ("json_schema", TEXT)),
        ("json_schema", "true", ("json_schema", "true")),
        ("regex", "a+", ("regex", "a+")),
        ("grammar", 'start: "a"', ("grammar", 'start: "a"')),
        ("grammar", 'root ::= "a" | "b"', ("grammar", 'root ::= "a" | "b"')),
        ("response_format", {"type": "text"}, None),
        ("response_format", "text", None),
        ("response_format", {"type": "json_object"}, ANY_OBJECT),
        ("response_format", "json_object", ANY_OBJECT),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            ("json_schema", TEXT),
        ),
        (
            "response_format",
            json.dumps({"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
            ("json_schema", TEXT),
        ),
    ],
)
def test_every_shape_is_taken_and_overrides_the_default(name, value, expected):
    default = ("regex", "b")
    assert read(default, **{name: [value, None]}) == ([expected, default], {})


@pytest.mark.parametrize(
    ("columns", "code", "part"),
    [
        ({"regex": 5}, "bad_parameter", "regex must be text, not 5"),
        ({"grammar": ["a"]}, "bad_parameter", "grammar must be text"),
        ({"json_schema": 5}, "bad_parameter", "json_schema must be an object or its JSON text"),
        ({"json_schema": {"a": object}}, "bad_parameter", "json_schema must be"),
        ({"response_format": {"type": "xml"}}, "bad_parameter", "response_format must be"),
        ({"response_format": {"type": "json_schema"}}, "bad_parameter", "response_format must be"),
        ({"response_format": "no JSON"}, "bad_parameter", "response_format must be"),
        ({"regex": "a", "json_schema": SCHEMA}, "bad_parameter", "json_schema and regex are set"),
        ({"regex": "a("}, "bad_schema", "regex: "),
        ({"grammar": "start: nothing"}, "bad_schema", "grammar: "),
        ({"json_schema": "{"}, "bad_schema", "json_schema: not JSON"),
        ({"json_schema": {"type": "strange"}}, "bad_schema", "json_schema: Invalid type: strange"),
        ({"json_schema": {"not": {}}}, "bad_schema", 'Unimplemented keys: ["not"]'),
    ],
)
def test_what_cannot_be_used_sets_its_row_aside_by_name(columns, code, part):
    found, rejections = read(**{name: [None, value, None] for name, value in columns.items()})
    assert list(rejections) == [1]
    assert rejections[1][0] == code
    assert part in rejections[1][1]
    assert found == [None] * 3


def test_text_beside_something_else_says_nothing():
    columns = {"response_format": [{"type": "text"}], "regex": ["a"]}
    assert read(**columns) == ([("regex", "a")], {})


def test_rows_set_aside_before_are_left_alone():
    rejections = {0: ("bad_json", "x")}
    batch = RowBatch([1], {"regex": ["("]}, {})
    structures.read_structures(batch, None, rejections)
    assert rejections == {0: ("bad_json", "x")}


def test_nobody_asks_and_nothing_is_made():
    assert read(prompt=["a"] * 3) == ([], {})


def test_a_default_that_cannot_be_used_is_refused():
    assert default_structure({"regex": "a", "grammar": None}) == ("regex", "a")
    assert default_structure({"response_format": "text"}) is None
    with pytest.raises(InputError, match="regex: "):
        default_structure({"regex": "a("})


def test_without_the_library_only_json_is_checked(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    problem.cache_clear()
    assert read(regex=["a("]) == ([("regex", "a(")], {})
    assert read(json_schema=["{"])[1][0][0] == "bad_schema"
    problem.cache_clear()


def test_the_type_of_the_column_holds_them():
    rows = pa.array([("regex", "a"), None], structures.STRUCTURE_TYPE)
    assert rows.to_pylist() == [{"kind": "regex", "text": "a"}, None]
