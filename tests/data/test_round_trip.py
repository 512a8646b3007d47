"""Rows in = rows out: any input, through ingest and answers, comes out once and in order."""

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_ingest import through

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
chats = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=2)
odd = st.none() | st.integers() | st.lists(st.integers(0, 300), max_size=3) | st.booleans()
rows = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "prompt": texts | odd,
        "messages": chats | odd,
        "max_tokens": st.integers(-1, 3) | st.text(max_size=1),
        "note": texts,
        "score": st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
        "any": st.dictionaries(texts, odd, max_size=2) | odd | texts,
    },
)
bad_lines = st.sampled_from([b"[1]", b"null", b'{"id": 1', b'"x"', b"\xff\xfe", b"nan"])
blanks = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n  \t\r\n"])


FIRST = {"id": 0, "prompt": "first", "note": "", "any": {}}  # fixes the kinds of its columns


@settings(deadline=None, max_examples=60)
@given(lines=st.lists(st.tuples(rows | bad_lines, blanks), max_size=12), ascii=st.booleans())
def test_every_row_comes_out_once_in_order_with_its_columns(tokenizer, lines, ascii):
    lines = [(FIRST, b"\n"), *lines]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(b"".join(encode(row, ascii) + end for row, end in lines))
        check(Path(folder), path, tokenizer, [row for row, _ in lines])


def encode(row, ascii):
    return row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=ascii).encode()


def check(folder, path, tokenizer, expected):
    result, outputs = through([path], folder, tokenizer)
    accepted = result.requests["row"].to_numpy()
    assert sorted([*accepted, *result.rejected["row"].to_pylist()]) == list(range(len(expected)))
    table = outputs.to_pylist()
    assert len(table) == len(expected)
    for number, (given_row, row) in enumerate(zip(expected, table, strict=True)):
        assert (row["status"] == "ok") == (number in accepted)
        assert (row["error"] is None) == (row["status"] == "ok")
        if isinstance(given_row, bytes):
            assert row["error"].startswith("bad_json: ")
            assert row["id"] is None
            continue
        assert row["id"] == given_row["id"]
        assert row.get("note") == given_row.get("note")
        assert row.get("score") == given_row.get("score")
        raw = None if row.get("any") is None else json.loads(row["any"])
        assert raw == given_row.get("any")
        if row["status"] == "ok" and isinstance(given_row.get("prompt"), str):
            assert bytes(row["output_token_ids"]).decode() == given_row["prompt"]


bodies = st.fixed_dictionaries(
    {},
    optional={
        "model": texts,
        "prompt": texts | odd | st.lists(texts, max_size=2),
        "messages": chats | odd,
        "max_tokens": st.integers(-1, 3),
        "max_completion_tokens": st.none() | st.integers(1, 3),
        "stream": st.booleans(),
        "tools": odd,
    },
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": st.sampled_from(["a", "b", "", None, 5]) | texts,
        "method": st.sampled_from(["POST", "GET", None]),
        "url": st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/x", None]),
        "body": bodies | odd,
    },
)


@settings(deadline=None, max_examples=60)
@given(lines=st.lists(requests, max_size=10), strangers=st.lists(rows, max_size=2))
def test_every_batch_request_comes_out_once_with_its_fields(tokenizer, lines, strangers):
    first = {"custom_id": "first", "method": "POST", "url": "/v1/completions", "prompt": None}
    lines = [{**first, "body": {"prompt": "x"}} | {"prompt": "y"}, *strangers, *lines]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(b"".join(encode(line, False) + b"\n" for line in lines))
        result, outputs = through([path], Path(folder), tokenizer)
    assert outputs.num_rows == result.num_rows == len(lines)
    accepted = set(result.requests["row"].to_pylist())
    ids = set()
    for number, (line, row) in enumerate(zip(lines, outputs.to_pylist(), strict=True)):
        assert (row["status"] == "ok") == (row["error"] is None) == (number in accepted)
        for name, value in line.items():
            assert row[name] == value or json.loads(row[name]) == value
        if number in accepted and "prompt" not in line and "messages" not in line:
            assert line["custom_id"] not in ids
            ids.add(line["custom_id"])


TABLE = pa.schema(
    [
        ("prompt", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("max_tokens", pa.int64()),
        ("id", pa.int64()),
        ("any", pa.list_(pa.list_(pa.float64()))),
    ]
)
records = st.fixed_dictionaries(
    {
        "prompt": st.none() | texts,
        "messages": st.none() | chats,
        "max_tokens": st.none() | st.integers(-1, 3),
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "any": st.none() | st.lists(st.none() | st.lists(st.none() | st.just(0.1), max_size=2)),
    }
)


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(records, max_size=12), group=st.integers(1, 5), limit=st.integers(1, 14))
def test_every_row_of_parquet_comes_out_as_it_was(tokenizer, rows, group, limit):
    table = pa.Table.from_pylist(rows, TABLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part=01" / "rows.parquet"
        path.parent.mkdir()
        pq.write_table(table, path, row_group_size=group)
        result, outputs = through([path], Path(folder), tokenizer, limit=limit)
    kept = table.slice(0, limit)
    assert outputs.select(TABLE.names).equals(kept)
    assert outputs["part"].to_pylist() == ["01"] * kept.num_rows
    accepted = result.requests["row"].to_pylist()
    for number, (row, out) in enumerate(zip(kept.to_pylist(), outputs.to_pylist(), strict=True)):
        assert (out["status"] == "ok") == (out["error"] is None) == (number in accepted)
        if out["status"] == "ok" and row["prompt"] is not None:
            assert bytes(out["output_token_ids"]).decode() == row["prompt"]
