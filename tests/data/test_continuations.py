"""Rows that ask for scores: what they may hold, and why a row is set aside."""

import json

import numpy as np
import pytest

from blendrun.data.columns import ColumnNames
from blendrun.data.input_options import InputOptions
from blendrun.data.sampling import SamplingParams
from tiny_ingest import ingest

LIMIT = 12  # tokens, which are bytes


def read(tmp_path, tokenizer, *rows, columns=None, **options):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    names = columns or ColumnNames()
    return ingest(
        [str(source)],
        names,
        tokenizer,
        SamplingParams(n=2, stop=("x",), temperature=1.0),
        LIMIT,
        257,
        tmp_path / "store",
        **options,
    )


def test_each_continuation_is_a_request_of_its_row(tmp_path, tokenizer):
    result = read(
        tmp_path,
        tokenizer,
        {"prompt": "ab", "score": ["c", "de"]},
        {"prompt": "ab"},
        {"prompt": "ab \n", "score": ["c"]},
        {"prompt_token_ids": [1, 2], "score": [[3], [4, 5]]},
        {"prompt": "ab ", "score": [[3]]},
    )
    table = result.requests.to_pydict()
    assert table["row"] == [0, 0, 1, 1, 2, 3, 3, 4]
    assert table["sample"] == [0, 1, 0, 1, 0, 0, 1, 0]
    assert table["score_start"] == [2, 2, None, None, 2, 2, 2, 3]
    assert table["prompt_len"] == [3, 4, 2, 2, 5, 3, 4, 4]
    scored = [start is not None for start in table["score_start"]]
    assert [m == 0 for m in table["max_tokens"]] == scored
    assert [t == 0 for t in table["temperature"]] == scored
    assert [s is None for s in table["stop"]] == scored
    texts = [bytes(result.store[i].tolist()) for i in range(8)]
    assert texts[:6] == [b"abc", b"abde", b"ab", b"ab", b"ab \nc", b"\x01\x02\x03"]
    assert texts[7] == b"ab \x03"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"score": []}, "bad_parameter: score: there is no continuation"),
        ({"score": ["a", ""]}, "bad_parameter: score: continuation 1 is empty"),
        ({"score": [[1], []]}, "bad_parameter: score: continuation 1 is empty"),
        ({"score": ["a", 5]}, "bad_type: score: "),
        ({"score": ["a", [5]]}, "bad_type: score: "),
        ({"score": ["a", None]}, "bad_type: score: "),
        ({"score": [1, 2]}, "bad_type: score: "),
        ({"score": [[1.5]]}, "bad_type: score: "),
        ({"score": [[True]]}, "bad_type: score: "),
        ({"score": [[257]]}, "bad_token_id: score: token id 257"),
        ({"score": [[2**70]]}, "bad_token_id: score: "),
        ({"score": ["a"] * 16385}, "bad_parameter: score: 16385 continuations"),
        ({"score": ["c" * 11]}, "context_length: the prompt has 2 tokens and its longest "
                                "continuation 11, the context is 12"),
        ({"prompt": "", "score": ["c"]}, "empty_prompt: "),
        ({"prompt": " ", "score": ["c"]}, "empty_prompt: "),
        ({"prompt": None, "score": ["c"]}, "empty_prompt: "),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_set_aside(row, reason, tmp_path, tokenizer):
    result = read(tmp_path, tokenizer, {"prompt": "ab", **row}, {"prompt": "ab", "score": ["cd"]})
    (rejected,) = result.rejected.to_pylist()
    assert f"{rejected['code']}: {rejected['message']}".startswith(reason)
    assert result.requests["row"].to_pylist() == [1]


def test_a_continuation_may_fill_the_context(tmp_path, tokenizer):
    result = read(tmp_path, tokenizer, {"prompt": "ab", "score": ["c" * 10]})
    assert result.requests["prompt_len"].to_pylist() == [LIMIT]


def test_other_values_are_passed_over_unless_the_column_is_named(tmp_path, tokenizer):
    rows = [{"prompt": "ab", "score": value} for value in (0.5, "good", True, None)]
    result = read(tmp_path, tokenizer, *rows)
    assert set(result.requests["score_start"].to_pylist()) == {None}
    named = ColumnNames.from_flags(score="score")
    result = read(tmp_path, tokenizer, *rows, columns=named)
    assert result.rejected["row"].to_pylist() == [0, 1, 2]
    assert set(result.rejected["code"].to_pylist()) == {"bad_type"}


def test_prompts_that_are_cut_leave_room_for_their_continuations(tmp_path, tokenizer):
    row = {"prompt": "abcdefghijklmnop", "score": ["123", "12345"]}
    result = read(tmp_path, tokenizer, row, options=InputOptions(truncate="left"))
    texts = [bytes(result.store[i].tolist()) for i in range(2)]
    assert texts == [b"jklmnop123", b"jklmnop12345"]


class Merging:
    """Tokens are bytes, but "ab" is one token."""

    bos_id = None

    def encode_texts(self, texts):
        return [np.frombuffer(t.replace("ab", "\x01").encode(), np.uint8).astype(np.int32)
                for t in texts]  # fmt: skip

    encode_rendered = encode_texts


def test_tokens_are_those_after_as_many_as_the_prompt_has(tmp_path):
    rows = [{"prompt": "xa", "score": ["bc"]}, {"prompt": "xa", "score": ["b", "c"]}]
    result = read(tmp_path, Merging(), *rows)
    # "xabc" is x, ab, c; two tokens are the prompt's, which stays x, a
    assert bytes(result.store[0].tolist()) == b"xac"
    assert result.requests["score_start"].to_pylist() == [2]
    (rejected,) = result.rejected.to_pylist()
    assert rejected["message"] == "score: continuation 0 adds no token to those of the prompt"
