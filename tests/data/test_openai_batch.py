"""Lines of OpenAI's Batch API: the body is the request; what cannot be followed is told."""

import json

import pytest

from blendrun.data.columns import ColumnNames
from blendrun.data.input_options import InputOptions
from blendrun.data.sampling import SamplingParams
from blendrun.errors import InputError
from tiny_ingest import ingest

CHAT = [{"role": "user", "content": "hi"}]
CHAT_URL, TEXT_URL = "/v1/chat/completions", "/v1/completions"


def line(number=0, url=TEXT_URL, body=None, **changes):
    plain = {"prompt": f"p{number}"} if url == TEXT_URL else {"messages": CHAT}
    request = {
        "custom_id": f"request-{number}",
        "method": "POST",
        "url": url,
        "body": {"model": "tiny", **plain, **(body or {})},
        **changes,
    }
    return {name: value for name, value in request.items() if value is not ...}


@pytest.fixture
def run(tmp_path, tokenizer):
    """Ingests files of rows; the job's model is called tiny."""

    def call(*files, columns=ColumnNames(), **options):  # noqa: B008
        paths = []
        for number, rows in enumerate(files):
            paths.append(tmp_path / f"{number}.jsonl")
            paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        return ingest(
            list(map(str, paths)),
            columns,
            tokenizer,
            SamplingParams(max_tokens=9),
            1000,
            257,
            tmp_path / "store",
            options=InputOptions(model="tiny", **options),
        )

    return call


def texts(result):
    return [bytes(result.store[i].tolist()).decode() for i in range(len(result.store))]


def reasons(result):
    return [f"{r['code']}: {r['message']}" for r in result.rejected.to_pylist()]


def test_text_and_chats_run_and_the_body_sets_the_parameters(run):
    body = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["a", "b"]}
    rows = [
        line(0, body=body),
        line(1, CHAT_URL, {"max_completion_tokens": 5, "max_tokens": 4, "temperature": None}),
        line(2, body={"prompt": [104, 105]}),
        line(3, body={"prompt": ["one"]}),
    ]
    result = run(rows)
    assert texts(result) == ["p0", repr(CHAT[0]), "hi", "one"]
    first, second, *_ = result.requests.to_pylist()
    assert (first["max_tokens"], first["seed"], first["stop"]) == (3, 7, ["a", "b"])
    assert first["temperature"] == 0.5
    assert first["top_p"] == pytest.approx(0.9)
    assert (second["max_tokens"], second["temperature"]) == (5, 0.0)
    assert result.requests["max_tokens"].to_pylist()[2:] == [9, 9]
    assert result.notes == ()


def test_the_columns_of_the_output_are_those_of_the_line(run):
    (source,) = run([line(0), line(1)]).sources
    assert source.columns == (
        ("custom_id", "string"),
        ("method", "string"),
        ("url", "string"),
        ("body", "json"),
    )


def test_several_answers_log_probabilities_and_formats_are_asked_for_as_openai_does(run):
    body = {"n": 2, "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": -100}}
    result = run([line(0, CHAT_URL, body), line(1, CHAT_URL, {"logprobs": True}), line(2)])
    assert result.requests["row"].to_pylist() == [0, 0, 1, 2]
    assert result.requests["logprobs"].to_pylist() == [3, 3, 0, None]
    assert result.requests["logit_bias"].to_pylist()[0] == [(5, -100.0)]
    (request,) = run(
        [line(0, CHAT_URL, {"response_format": {"type": "json_object"}})]
    ).requests.to_pylist()
    assert request["structure"]["kind"] == "json_schema"


def test_tools_of_a_body_reach_the_template(run):
    tools = [{"type": "function", "function": {"name": "f"}}]
    (text,) = texts(run([line(0, CHAT_URL, {"tools": tools, "tool_choice": "auto"})]))
    assert text == repr(tools[0]) + repr(CHAT[0])


BAD = [
    (line(1, custom_id=...), "bad_request: custom_id must be text"),
    (line(1, custom_id=""), "bad_request: custom_id must be text"),
    (line(1, custom_id=5), "bad_request: custom_id must be text"),
    (line(1, method="GET"), "bad_request: method must be POST, not 'GET'"),
    (line(1, method=...), "bad_request: method must be POST, not null"),
    (line(1, url="/v1/embeddings"), "bad_request: url must be /v1/chat/completions or"),
    (line(1, url=...), "bad_request: url must be"),
    (line(1) | {"body": None}, "bad_request: body must be an object, not null"),
    (line(1) | {"body": "{}"}, "bad_request: body must be an object"),
    (line(1) | {"body": {}}, "bad_request: the body has no prompt"),
    (line(1, CHAT_URL) | {"body": {"prompt": "x"}}, "bad_request: the body has no messages"),
    (line(1, body={"prompt": ["a", "b"]}), "bad_request: a request with several prompts"),
    (line(1, body={"prompt": ""}), "empty_prompt: "),
    (line(1, body={"prompt": {"a": 1}}), "bad_type: the prompt must be text"),
    (line(1, CHAT_URL, {"messages": []}), "empty_prompt: messages is an empty list"),
    (line(1, body={"stream": True}), "bad_parameter: stream True is not supported"),
    (line(1, CHAT_URL, {"response_format": {"type": "xml"}}), "bad_parameter: response_format"),
    (line(1, CHAT_URL, {"tool_choice": "required"}), "bad_parameter: tool_choice 'required'"),
    (line(1, body={"no_such": 1}), "bad_parameter: no_such 1 is not supported"),
    (line(1, body={"max_tokens": -1}), "bad_parameter: max_tokens must be"),
    (line(1, body={"max_tokens": "5"}), "bad_parameter: max_tokens must be an integer"),
    (line(0), "bad_request: custom_id: an earlier line of the file has the same"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_request_that_cannot_run_is_set_aside_with_a_reason(run, row, reason):
    result = run([line(0), row, line(2)])
    assert texts(result) == ["p0", "p2"]
    assert result.rejected["row"].to_pylist() == [1]
    assert result.rejected["line"].to_pylist() == [2]
    (told,) = reasons(result)
    assert told.startswith(reason)
    known = [row["custom_id"]] if row.get("custom_id") in ("request-0", "request-1") else [None]
    assert result.rejected["id"].to_pylist() == known


def test_fields_that_ask_for_nothing_are_no_obstacle(run):
    neutral = {"stream": False, "user": "me", "metadata": {"a": "b"}, "suffix": "", "echo": False}
    assert not run([line(0, body=neutral)]).rejected.num_rows
    chat = {"response_format": {"type": "text"}, "logprobs": False, "tool_choice": "auto"}
    assert not run([line(0, CHAT_URL, {**chat, "store": True})]).rejected.num_rows


def test_ids_repeat_over_files_but_not_within_one(run, monkeypatch):
    monkeypatch.setattr("blendrun.data.jsonl_reader._BATCH_ROWS", 2)
    first = [line(0), line(1), line(2), line(0), line(1, url="/x"), line(3)]
    result = run(first, [line(0), line(1)])
    assert result.rejected["row"].to_pylist() == [3, 4]
    assert [reason.partition(":")[0] for reason in reasons(result)] == ["bad_request"] * 2
    assert result.requests["row"].to_pylist() == [0, 1, 2, 5, 6, 7]
    assert texts(result) == ["p0", "p1", "p2", "p3", "p0", "p1"]


def test_another_model_in_the_body_is_told_once(run):
    rows = [line(0), line(1, body={"model": "gpt-9"}), line(2, body={"model": "gpt-8"})]
    (note,) = run(rows).notes
    assert note.startswith("2 rows whose body names another model, such as 'gpt-9'")


def test_rows_with_a_prompt_are_no_batch_requests(run):
    row = {"custom_id": "a", "url": "/x", "method": "POST", "body": {}, "prompt": "mine"}
    assert texts(run([row])) == ["mine"]
    with pytest.raises(InputError, match="no column"):
        run([{"url": "https://example.org", "body": "a page"}])


def test_a_file_of_bad_requests_only_is_still_one(run):
    result = run([{"custom_id": "a", "body": {"prompt": "x"}}])
    assert reasons(result)[0].startswith("bad_request: method")


def test_the_format_may_be_stated(run):
    assert reasons(run([{"prompt": "x"}], format="openai"))[0].startswith("bad_request")
    with pytest.raises(InputError, match="no column 'prompt'"):
        run([line(0)], format="columns")
    named = ColumnNames(prompt="custom_id")
    assert texts(run([line(0)], columns=named)) == ["request-0"]


def test_a_column_that_is_named_must_exist_beside_the_requests_too(run):
    with pytest.raises(InputError, match="no column 'key'"):
        run([line(0)], columns=ColumnNames.from_flags(id="key"))
    with pytest.raises(InputError, match="template"):
        run([line(0)], format="openai", template="{custom_id}")
