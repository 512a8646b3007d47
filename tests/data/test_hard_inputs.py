"""Inputs that trip readers, a kind at a time: rows in are rows out, unchanged, with a reason."""

import datetime
import decimal
import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data import rows
from blendrun.data.input_options import InputOptions
from tiny_ingest import through

ROWS = [{"prompt": "one"}, {"prompt": "two"}]
LINES = [json.dumps(row).encode() for row in ROWS]
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def outputs(tmp_path, tokenizer):
    """Output rows of a JSONL file's bytes or of a table, and what was ingested."""

    def call(content, name="rows.jsonl", **options):
        if isinstance(content, pa.Table):
            name = "rows.parquet"
            pq.write_table(content, tmp_path / name, row_group_size=2)
        else:
            (tmp_path / name).write_bytes(content)
        options = {"tokenizer": tokenizer, **options}
        return through([tmp_path / name], tmp_path, **options)

    return call


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# --- how a file is written ---

WRITTEN = {
    "plain": b"\n".join(LINES) + b"\n",
    "no final newline": b"\n".join(LINES),
    "BOM": BOM + b"\n".join(LINES) + b"\n",
    "CRLF": b"\r\n".join(LINES) + b"\r\n",
    "BOM and CRLF": BOM + b"\r\n".join(LINES),
    "blank lines": b"\n\n" + b"\n \t\n\r\n".join(LINES) + b"\n\n",
    "spaces around": b" \t" + b" \n\t".join(LINES) + b"  \n",
}


@pytest.mark.parametrize("content", WRITTEN.values(), ids=WRITTEN)
def test_how_lines_end_changes_no_row(outputs, content):
    _, table = outputs(content)
    assert table["prompt"].to_pylist() == table["output_text"].to_pylist() == ["one", "two"]


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
PACKED = {
    "one member.jsonl.gz": gzip.compress(WRITTEN["plain"]),
    "members.jsonl.gz": gzip.compress(LINES[0] + b"\n") + gzip.compress(LINES[1]),
    "cut within a line.ndjson.gz": b"".join(
        gzip.compress(WRITTEN["plain"][i : i + 7]) for i in range(0, 40, 7)
    ),
    "one frame.jsonl.zst": zstd(WRITTEN["plain"]),
    "frames.jsonl.ZST": zstd(LINES[0] + b"\n") + SKIPPABLE + zstd(LINES[1]),
    "cut within a line.ndjson.zst": b"".join(
        zstd(WRITTEN["plain"][i : i + 7]) for i in range(0, 40, 7)
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_files_are_read_through(outputs, name):
    _, table = outputs(PACKED[name], name)
    assert table["prompt"].to_pylist() == ["one", "two"]


def test_messages_name_the_line_of_the_file(outputs):
    result, _ = outputs(BOM + b"\r\n\r\n{}\r\n  \r\n\n[]")
    assert result.rejected["line"].to_pylist() == [3, 6]


# --- what a text may hold ---

TEXTS = {
    "line separators": "a\u2028b\u2029c\u0085d",
    "NUL": "a\x00b\x00",
    "emoji": "\U0001f600\U0010ffff",
    "line ends": "a\r\nb\rc\n",
    "BOM within": "\ufeffa\ufeff",
    "like a date": "2024-01-01",
    "like a number": "7",
    "like null": "null",
    "noncharacters": "\uffff\ufffe\ufdd0",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("kind", ["ascii", "utf-8", "parquet"])
def test_a_text_is_the_same_to_the_byte_in_prompt_and_output(outputs, text, kind):
    row = {"prompt": text, "note": text}
    content = json.dumps(row, ensure_ascii=kind == "ascii").encode() + b"\n"
    result, table = outputs(
        pa.table({k: [v] for k, v in row.items()}) if kind == "parquet" else content
    )
    assert bytes(result.store[0].tolist()) == text.encode()
    assert table.select(["prompt", "note"]).to_pylist() == [row]
    assert table.schema.field("prompt").type == pa.string()


@pytest.mark.parametrize("bad_unicode", ["error", "replace"])
def test_half_a_surrogate_pair_leaves_a_readable_file(outputs, bad_unicode):
    content = b'{"prompt": "a\\ud800", "x": {"\\udfff": 1}}\n{"prompt": "b", "x": 1}\n'
    _, table = outputs(content, options=InputOptions(bad_unicode=bad_unicode))
    assert table["prompt"].to_pylist() == ["a\ufffd", "b"]
    assert table["x"].to_pylist() == ['{"\\udfff": 1}', "1"]
    status = table["status"].to_pylist()
    assert status == (["ok", "ok"] if bad_unicode == "replace" else ["error", "ok"])


# --- lines that are no rows ---

NO_ROWS = [b"[1,2]", b'"x"', b"null", b"7", b'{"prompt": "cut', b"\xff\xfe", b'{"a": NaN}']


@pytest.mark.parametrize("line", NO_ROWS)
@pytest.mark.parametrize("last", [False, True])
def test_a_bad_line_is_kept_in_its_reason_and_the_others_run(outputs, line, last):
    content = b"\n".join([LINES[0], line] if last else [LINES[0], line, LINES[1]])
    _, table = outputs(content)
    good = [0] if last else [0, 2]
    assert [i for i, s in enumerate(table["status"].to_pylist()) if s == "ok"] == good
    error = table["error"].to_pylist()[1]
    assert error.startswith("bad_json: ")
    assert "rows.jsonl, line 2: " in error
    assert error.endswith(f"; the line: {line.decode('utf-8', 'backslashreplace')}")
    assert table["prompt"].to_pylist()[1] is None


def test_a_long_bad_line_is_kept_as_far_as_is_of_use(outputs):
    _, table = outputs(LINES[0] + b"\n" + b"x" * 1_500_000)
    error = table["error"].to_pylist()[1]
    assert len(error) < 1200
    assert error.endswith(" … and 1,499,000 bytes")


# --- numbers and types ---

NUMBERS = ["12345678901234567890123", "-9223372036854775809", "1e400", "18446744073709551616"]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_no_column_holds_is_kept_digit_by_digit(outputs, number):
    _, table = outputs(b'{"prompt": "x", "id": %s}\n{"prompt": "y", "id": 1}' % number.encode())
    assert table["id"].to_pylist() == [number, "1"]


def test_fields_whose_kinds_disagree_are_kept_as_json_text(outputs):
    rows = [{"prompt": "x", "a": value} for value in (1, "1", None, [1.0], {"b": None}, True)]
    _, table = outputs(lines(*rows, {"prompt": "x"}))
    assert table["a"].to_pylist() == ["1", '"1"', None, "[1.0]", '{"b": null}', "true", None]


def test_types_of_parquet_are_identical_in_the_output(outputs):
    table = pa.table(
        {
            "prompt": ["a", "b", "c"],
            "id": pa.array([2**63 - 1, None, -(2**63)]),
            "near": pa.array([2**53 + 1, None, 2**53 + 3]),
            "price": pa.array([decimal.Decimal("0.10"), None, decimal.Decimal("1E+3")]),
            "day": pa.array([datetime.datetime(9999, 1, 1), None, datetime.datetime(1, 1, 1)]),
            "zone": pa.array([0, None, 1], pa.timestamp("ns", "America/New_York")),
            "list": pa.array([[None, 1], None, []], pa.list_(pa.uint8())),
        }
    )
    _, written = outputs(table)
    assert written.select(table.column_names).equals(table)
    assert written.schema.field("price").type == table.schema.field("price").type


def test_bytes_that_are_no_text_set_their_row_aside(outputs):
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    prompts = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xff\xfeb"))
    result, written = outputs(pa.table({"prompt": prompts, "k": [1, 2, 3]}))
    assert result.requests["row"].to_pylist() == [0, 2]
    assert written["k"].to_pylist() == [1, 2, 3]
    error = written["error"].to_pylist()[1]
    assert error.startswith("bad_type: column 'prompt': 'utf-8' codec can't decode")


def test_a_time_that_python_cannot_hold_is_kept_and_no_text(outputs):
    times = pa.array([10**9, 1], pa.timestamp("ns"))
    table = pa.table({"prompt": ["x", "y"], "t": times})
    _, written = outputs(table, options=InputOptions(template="{prompt} {t}"))
    assert written["t"].combine_chunks().equals(times)
    assert written["status"].to_pylist() == ["ok", "error"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.timestamp("ns"), "1970-01-01 00:00:01.000005"),
        (pa.timestamp("ns", "UTC"), "1970-01-01 00:00:01.000005+00:00"),
        (pa.duration("ns"), "0:00:01.000005"),
        (pa.time64("ns"), "00:00:01.000005"),
    ],
)
def test_times_in_nanoseconds_are_those_of_python(kind: pa.DataType, text: str):
    (value,) = rows._values(pa.array([1_000_005_000], kind), "t", {})
    assert type(value).__module__ == "datetime"
    assert str(value) == text


# --- columns of which only text can be used ---

NO_TEXTS = {"number": "7", "truth": "true", "object": '{"a":[1.50]}', "list": '["a"]'}


@pytest.mark.parametrize("value", NO_TEXTS.values(), ids=NO_TEXTS)
def test_a_prompt_that_is_no_text_leaves_the_others_as_they_are(outputs, value):
    content = b'{"prompt": "a\\"b"}\n{"prompt": %s}\n{"prompt": null}' % value.encode()
    _, table = outputs(content)
    assert table["prompt"].to_pylist() == ['a"b', value, None]
    assert table["status"].to_pylist() == ["ok", "error", "error"]
    assert table["error"].to_pylist()[1].startswith("bad_type: the prompt must be text")


def test_a_bad_custom_id_leaves_the_others_as_they_are(outputs):
    body = {"prompt": "x"}
    row = {"method": "POST", "url": "/v1/completions", "body": body}
    _, table = outputs(lines({"custom_id": "a", **row}, {"custom_id": 7, **row}))
    assert table["custom_id"].to_pylist() == ["a", "7"]
    assert table["status"].to_pylist() == ["ok", "error"]


def test_prompts_of_text_and_of_token_ids_stay_apart(outputs):
    _, table = outputs(lines({"prompt": "[1]"}, {"prompt": [1]}))
    assert table["prompt"].to_pylist() == ['"[1]"', "[1]"]
    assert table["status"].to_pylist() == ["ok", "ok"]


NO_IDS = [("[1, 1.5]", "float"), ('["1"]', "str"), ("[null]", "NoneType"), ('"1"', "str")]


@pytest.mark.parametrize(("value", "kind"), NO_IDS)
def test_token_ids_that_are_none_say_what_was_found(outputs, value, kind):
    _, table = outputs(b'{"prompt_token_ids": [5]}\n{"prompt_token_ids": %s}' % value.encode())
    error = table["error"].to_pylist()[1]
    assert error.startswith("bad_type: the prompt must be a list of token ids, not ")
    assert "null" in error if kind == "NoneType" else error.endswith(f"a value of type {kind}")


# --- chats ---

CALL = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
CHATS = {
    "plain": [{"role": "user", "content": "hi"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "call": [{"role": "assistant", "content": None, "tool_calls": CALL}],
    "call without content": [{"role": "assistant", "tool_calls": CALL}],
    "answer": [{"role": "tool", "content": "4", "tool_call_id": "1"}],
}


def test_chats_with_and_without_calls_and_parts_stand_side_by_side(outputs):
    rows = [{"messages": chat} for chat in CHATS.values()]
    result, table = outputs(lines(*rows), context_len=1000)
    assert result.rejected.num_rows == 0
    assert [json.loads(chat) for chat in table["messages"].to_pylist()] == list(CHATS.values())
    prompts = [bytes(result.store[i].tolist()).decode() for i in range(len(CHATS))]
    assert prompts[0] == prompts[1] == "{'role': 'user', 'content': 'hi'}"
    assert [("tool_calls" in prompt) for prompt in prompts] == [False, False, True, True, False]
    assert "content" not in prompts[3]
    assert "tool_call_id" in prompts[4]


def test_arrow_invents_no_fields_of_chats(outputs):
    chats = [CHATS[name] for name in ("plain", "call without content", "answer")]
    table = pa.table({"messages": chats})
    result, written = outputs(table, context_len=1000)
    assert written["messages"].equals(table["messages"])
    prompts = [bytes(result.store[i].tolist()).decode() for i in range(3)]
    assert prompts == [repr(chat[0]) for chat in chats]


def test_chats_of_parquet_may_have_parts(outputs):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    table = pa.table({"messages": [[{"role": "user", "content": parts}]]})
    result, written = outputs(table, context_len=1000)
    assert bytes(result.store[0].tolist()).decode() == repr({"role": "user", "content": "a\nb"})
    assert written["messages"].equals(table["messages"])


# --- large and empty ---


def test_a_prompt_of_three_million_characters_is_read_whole(outputs):
    text = "0123456789" * 300_000
    content = lines({"prompt": text, "note": text}, {"prompt": "x"})
    result, table = outputs(content, context_len=4_000_000)
    assert table["note"].to_pylist()[0] == text
    assert bytes(result.store[0].astype("u1")) == text.encode()
    result, table = outputs(content, context_len=1_000_000)
    assert result.rejected["code"].to_pylist() == ["context_length"]
    assert table["note"].to_pylist()[0] == text


def test_a_nested_row_group_of_twenty_megabytes_is_read_whole(outputs):
    nested = [[{"k": "v" * 100, "l": [1, 2, 3]}] * 20_000] * 8
    table = pa.table({"prompt": [str(i) for i in range(8)], "nested": nested})
    assert table.nbytes > 20e6
    _, written = outputs(table)
    assert written.select(table.column_names).equals(table)


SCHEMA = pa.schema([("prompt", pa.string()), ("k", pa.decimal128(9, 2))])
EMPTY_GROUPS = {"no row groups": 0, "one empty row group": 1, "empty ones around": 3}


@pytest.mark.parametrize("groups", EMPTY_GROUPS.values(), ids=EMPTY_GROUPS)
def test_row_groups_may_be_empty(tmp_path, tokenizer, groups):
    path = tmp_path / "a.parquet"
    full = pa.table(
        {"prompt": ["x"], "k": pa.array([decimal.Decimal("1.00")], SCHEMA.field(1).type)}
    )
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for number in range(groups):
            writer.write_table(full if number == 1 else SCHEMA.empty_table())
    _, table = through([path], tmp_path, tokenizer)
    assert table.num_rows == (groups == 3)
    assert table.schema.names[:2] == ["prompt", "k"]
    assert table.schema.field("k").type == SCHEMA.field("k").type


@pytest.mark.parametrize("content", [b"", b"\n \r\n", BOM])
def test_an_empty_file_has_no_rows_and_the_columns_of_answers(outputs, content):
    _, table = outputs(content)
    assert (table.num_rows, table.schema.names[0]) == (0, "output_text")


NO_PROMPT = [
    ({"prompt": ""}, "empty_prompt"),
    ({"prompt": None}, "empty_prompt"),
    ({"messages": []}, "empty_prompt"),
    ({"messages": None, "prompt": None}, "empty_prompt"),
    ({"prompt_token_ids": []}, "empty_prompt"),
    ({"other": 1}, "empty_prompt"),
]


@pytest.mark.parametrize(("row", "code"), NO_PROMPT)
def test_a_row_without_a_prompt_says_so(outputs, row, code):
    _, table = outputs(lines({"prompt": "x"}, row))
    assert table["error"].to_pylist()[1].startswith(f"{code}: ")


def test_an_empty_text_runs_with_the_token_that_begins_every_text(outputs, bos_tokenizer):
    result, _ = outputs(lines({"prompt": ""}), tokenizer=bos_tokenizer)
    assert list(result.store[0]) == [bos_tokenizer.bos_id]


# --- lengths ---


@pytest.mark.parametrize("order", [1, -1])
def test_the_context_holds_a_prompt_and_at_least_one_token_in_any_order(outputs, order):
    rows = [{"prompt": "x" * n, "k": n} for n in (8, 9, 10, 11)][::order]
    result, table = outputs(lines(*rows), context_len=10)
    errors = dict(zip(table["k"].to_pylist(), table["error"].to_pylist(), strict=True))
    assert errors[8] is errors[9] is None
    assert errors[10].startswith("context_length: the prompt has 10 tokens, the limit is 9")
    assert errors[11].startswith("context_length: the prompt has 11 tokens")
    assert sorted(result.requests["max_tokens"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("value", [-1, 1.5, "5"])
def test_a_limit_that_is_no_count_is_an_error_row(outputs, value):
    _, table = outputs(lines({"prompt": "x", "max_tokens": value}, {"prompt": "y"}))
    assert table["error"].to_pylist()[0].startswith("bad_parameter: max_tokens must be")
    assert table["status"].to_pylist() == ["error", "ok"]
