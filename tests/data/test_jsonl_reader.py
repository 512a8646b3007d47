"""JSON Lines: every line is a row or blank; a bad one is told with its place."""

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.data import jsonl_reader
from blendrun.data.jsonl_reader import json_columns, raw_members, read_jsonl
from blendrun.errors import InputError, PlanError
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
    "content",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\n{"a":2}',
        b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n',
        b'  {"a":1}\t\n{"a":2}   \n',
    ],
)
def test_bom_line_ends_and_spaces_change_nothing(tmp_path, content):
    assert read(tmp_path, content) == ([{"a": 1}, {"a": 2}], [1, 2], {})


def test_blank_lines_are_no_rows_but_count_as_lines(tmp_path):
    rows, lines, _ = read(tmp_path, b'\xef\xbb\xbf\n\n{"a":1}\n  \r\n\t\n{"a":2}\n\n')
    assert rows == [{"a": 1}, {"a": 2}]
    assert lines == [3, 6]


def test_empty_files_have_no_rows(tmp_path):
    for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
        assert read(tmp_path, content) == ([], [], {})


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


def test_a_limit_counts_bad_rows_and_skips_blank_lines(tmp_path):
    rows, lines, _ = read(tmp_path, b'{"a":1}\n\n[]\n{"a":2}\n{"a":3}\n', limit=3)
    assert rows == [{"a": 1}, None, {"a": 2}]
    assert lines == [1, 3, 4]


def test_batches_join_to_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl_reader, "_BATCH_ROWS", 3)
    content = b"".join(b'{"a":%d}\n' % i for i in range(10))
    rows, lines, _ = read(tmp_path, content)
    assert rows == [{"a": i} for i in range(10)]
    assert lines == list(range(1, 11))


def test_gzip_with_several_members_is_read_through(tmp_path):
    content = gzip.compress(b'{"a":1}\n') + gzip.compress(b'{"a":2}\n')
    assert read(tmp_path, content, name="a.jsonl.gz")[0] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b'{"a":1}\n' * 99)[:-12]])
def test_damaged_gzip_is_refused(tmp_path, content):
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path, content, name="a.jsonl.gz")


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' * 10)
    seen = []
    list(read_jsonl(path, None, seen.append))
    assert seen[-1] == path.stat().st_size


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
