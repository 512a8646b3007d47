"""Rows in = rows out: any JSONL, through ingest and answers, comes out once and in order."""

import json
import tempfile
from pathlib import Path

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
