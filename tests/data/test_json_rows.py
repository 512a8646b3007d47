"""Lines of JSON as rows: exact values, and a reason where a line is none."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.data.json_rows import json_columns, raw_members, read_jsonl
from blendrun.errors import PlanError
from fuzz.jsonl import check
from fuzz.run import PIECES, SEEDS


def read(tmp_path, content, limit=None, name="a.jsonl"):
    path = tmp_path / name
    path.write_bytes(content)
    rows, lines, errors = [], [], {}
    for batch in read_jsonl(path, limit):
        errors |= {len(rows) + index: why for index, why in batch.errors.items()}
        rows += batch.rows
        lines += batch.lines.numbers
    return rows, lines, errors


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1,2]", "expected an object, found a list"),
        (b'"x"', "expected an object, found a string"),
        (b"null", "expected an object, found null"),
        (b"1.5", "expected an object, found a number"),
        (b"true", "expected an object, found true or false"),
        (b'{"a": 1', "Expecting ',' delimiter at column 8"),
        (b'{"a": 1} x', "Extra data at column 10"),
        (b"{'a': 1}", "Expecting property name"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": "tab\there"}', "Invalid control character"),
        (b'{"a": ' + b"[" * 200_000 + b"}", ""),
        (b'{"a": ' + b"9" * 5000 + b"}", "limit"),
        (b"\x0c", "Expecting value"),
    ],
)
def test_a_bad_line_among_good_ones_is_a_row_with_a_reason(tmp_path, line, reason):
    rows, lines, errors = read(tmp_path, b'{"a":1}\n' + line + b'\n{"a":2}\n')
    assert rows == [{"a": 1}, None, {"a": 2}]
    assert lines == [1, 2, 3]
    assert list(errors) == [1]
    assert reason in errors[1]


def test_text_is_unchanged(tmp_path):
    text = "a\u2028b\u2029c\u0085d\x00e\U0001f600 \r\n\x0b\x0c\x1c"
    escaped = json.dumps({"a": text}).encode()
    plain = json.dumps({"a": text}, ensure_ascii=False).encode()
    assert read(tmp_path, escaped + b"\n" + plain)[0] == [{"a": text}] * 2


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(value=st.dictionaries(st.text(max_size=4), json_values, max_size=4), ascii=st.booleans())
def test_raw_members_are_the_text_of_each_value(value, ascii):
    members = {key: json.dumps(item, ensure_ascii=ascii) for key, item in value.items()}
    pairs = (f"\t{json.dumps(key, ensure_ascii=ascii)} : {text} " for key, text in members.items())
    assert raw_members("{" + ",".join(pairs) + " }") == members


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=12).map(b"".join))
@example(b'{"a":1}\n' + SEEDS[-1])
def test_any_bytes_give_the_rows_that_the_standard_library_sees(content):
    check(content)


def test_numbers_in_raw_text_keep_every_digit():
    text = '{"id": 12345678901234567890123, "x": 1.10e+2, "a": [ 1,2 ]}'
    expected = {"id": "12345678901234567890123", "x": "1.10e+2", "a": "[ 1,2 ]"}
    assert raw_members(text) == expected


def test_bad_rows_and_missing_values_are_null_in_columns(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":"x","b":[1]}\nbad\n{"b":{}}\n{"a":null,"b":null}\n')
    (batch,) = read_jsonl(path)
    a, b = json_columns(batch, (("a", "string"), ("b", "json")))
    assert a.to_pylist() == ["x", None, None, None]
    assert b.to_pylist() == ["[1]", None, "{}", None]
    assert a.type == b.type == pa.string()


def test_a_value_of_another_kind_than_declared_is_told(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":"x"}\n')
    (batch,) = read_jsonl(path)
    with pytest.raises(PlanError, match="'a' is not of kind 'int64'"):
        json_columns(batch, (("a", "int64"),))
