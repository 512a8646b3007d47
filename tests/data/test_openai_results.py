"""Results field by field as OpenAI documents them.

https://platform.openai.com/docs/api-reference/batch/request-output, and the objects of chat
completions and completions.
"""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.openai_results import OpenAiResults

# field to the types it may have; a dict describes an object
NULL, Text, Number, Count = type(None), str, float, int
USAGE = {
    "prompt_tokens": Count,
    "completion_tokens": Count,
    "total_tokens": Count,
    "prompt_tokens_details": {"cached_tokens": Count},
}
LINE: dict[str, Any] = {
    "id": Text,
    "custom_id": Text,
    "response": {"status_code": Count, "request_id": Text, "body": dict},
    "error": NULL,
}
BODY: dict[str, Any] = {
    "id": Text,
    "object": Text,
    "created": Count,
    "model": Text,
    "choices": list,
    "usage": USAGE,
    "system_fingerprint": NULL,
}
CHAT_CHOICE: dict[str, Any] = {
    "index": Count,
    "message": {"role": Text, "content": Text, "refusal": NULL},
    "logprobs": {"content": list, "refusal": NULL},
    "finish_reason": Text,
}
TEXT_CHOICE: dict[str, Any] = {
    "index": Count,
    "text": Text,
    "logprobs": {
        "tokens": list,
        "token_logprobs": list,
        "top_logprobs": list,
        "text_offset": list,
    },
    "finish_reason": Text,
}
PLACE: dict[str, Any] = {"token": Text, "logprob": Number, "bytes": list}
REFUSAL: dict[str, Any] = {"message": Text, "type": Text, "param": NULL, "code": Text}
HALVES = ["\\xf0", "\\x9f", "\\x98", "\\x80"]
OURS = {"stop_reason"}  # as vLLM has it


def check(value: Any, shape: Any) -> None:
    """`value` has the fields of `shape`, and none that is not documented."""
    if not isinstance(shape, dict):
        assert isinstance(value, shape)
        return
    assert set(value) - OURS == set(shape)
    for name, inner in shape.items():
        check(value[name], inner)


VOCAB = {"hi": 0, "Ġ": 1, "ð": 2, "Ł": 3, "ĺ": 4, "Ģ": 5, "<end>": 6}
EMOJI = [2, 3, 4, 5]  # one byte each


def detokenizer() -> Detokenizer:
    tokenizer = Tokenizer(models.WordLevel(VOCAB, unk_token="hi"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return Detokenizer(tokenizer)


def row(**fields: Any) -> dict[str, Any]:
    tokens = fields.get("output_token_ids", [0, *EMOJI, 6])
    return {
        "custom_id": "a",
        "url": "/v1/chat/completions",
        "status": "ok",
        "error": None,
        "output_text": "hi\U0001f600",
        "output_token_ids": tokens,
        "output_logprobs": [-0.5] * len(tokens),
        "output_top_logprobs": [[{"token_id": 1, "logprob": -0.1}]] * len(tokens),
        "finish_reason": "stop",
        "stop_reason": None,
        "num_prompt_tokens": 3,
        "num_cached_tokens": 1,
        "num_output_tokens": len(tokens),
        **fields,
    }


def line_of(*rows: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    (made,) = OpenAiResults("m", "0123456789abcdef", "messages", detokenizer).lines(rows)
    return made


def test_a_chat_completion_has_the_documented_fields():
    is_error, line = line_of(row())
    assert not is_error
    check(line, LINE)
    assert line["response"]["status_code"] == 200
    body = line["response"]["body"]
    check(body, BODY)
    assert body["object"] == "chat.completion"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    (choice,) = body["choices"]
    check(choice, CHAT_CHOICE)
    places = choice["logprobs"]["content"]
    for place in places:
        check(place, {**PLACE, "top_logprobs": list})
        for one in place["top_logprobs"]:
            check(one, PLACE)
    assert [place["token"] for place in places] == ["hi", *HALVES, "<end>"]
    assert (
        bytes(byte for place in places[:-1] for byte in place["bytes"]).decode() == "hi\U0001f600"
    )


def test_a_completion_has_the_documented_fields():
    _, line = line_of(row(url="/v1/completions"))
    check(line, LINE)
    body = line["response"]["body"]
    check(body, BODY)
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    check(choice, TEXT_CHOICE)
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["hi", *(f"bytes:{half}" for half in HALVES), "<end>"]
    assert logprobs["top_logprobs"] == [{" ": -0.1}] * 6
    assert logprobs["text_offset"] == [0, 2, 2, 2, 2, 3]


def test_without_logprobs_there_are_none():
    _, line = line_of(row(output_logprobs=None))
    assert line["response"]["body"]["choices"][0]["logprobs"] is None


def test_several_answers_are_choices_of_one_line():
    _, line = line_of(*(row(output_index=i) for i in range(3)))
    body = line["response"]["body"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 18


@pytest.mark.parametrize("code", ["bad_request", "bad_parameter", "context_length"])
def test_a_request_that_is_wrong_has_a_response_of_status_400(code: str):
    is_error, line = line_of(row(status="error", error=f"{code}: what: it was"))
    assert is_error
    check(line, LINE)
    assert line["response"]["status_code"] == 400
    assert set(line["response"]["body"]) == {"error"}
    check(line["response"]["body"]["error"], REFUSAL)
    assert line["response"]["body"]["error"]["code"] == code
    assert line["response"]["body"]["error"]["message"] == "what: it was"


@pytest.mark.parametrize("code", ["bad_json", "needs_more_memory", "non_finite_logits"])
def test_what_no_endpoint_answers_has_an_error_and_no_response(code: str):
    is_error, line = line_of(row(status="error", error=f"{code}: why"))
    assert is_error
    assert line["response"] is None
    assert line["error"] == {"code": code, "message": "why"}
