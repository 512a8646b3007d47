"""From files to requests: what a prompt may be, and what sets a row aside."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data import jsonl_reader
from blendrun.data.columns import ColumnNames
from blendrun.data.input_options import InputOptions
from blendrun.data.param_kinds import RARE_PARAMS
from blendrun.data.sampling import SamplingParams
from blendrun.errors import InputError
from tiny_ingest import ingest


@pytest.fixture
def run(tmp_path, tokenizer):
    """Ingests JSONL rows, or a table as Parquet."""

    def call(rows, columns=ColumnNames(), defaults=SamplingParams(), **options):  # noqa: B008
        if isinstance(rows, pa.Table):
            path = tmp_path / "rows.parquet"
            pq.write_table(rows, path)
        else:
            path = tmp_path / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = {"context_len": 1000, "vocab_size": 257, "tokenizer": tokenizer, **options}
        return ingest(
            settings.pop("paths", [str(path)]),
            columns,
            defaults=defaults,
            store_dir=tmp_path / "store",
            **settings,
        )

    return call


def texts(ingested):
    store = ingested.store
    return [bytes(store[i].astype(np.uint8)).decode() for i in range(len(store))]


def codes(ingested):
    return ingested.rejected["code"].to_pylist()


def messages(ingested):
    return ingested.rejected["message"].to_pylist()


STRING_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("kind", STRING_TYPES, ids=str)
def test_text_of_every_arrow_kind_is_a_prompt(run, kind):
    prompts = pa.array(["a\u2028\x00", "2024-01-01", "a\u2028\x00"]).cast(kind)
    result = run(pa.table({"prompt": prompts}))
    assert texts(result) == ["a\u2028\x00", "2024-01-01", "a\u2028\x00"]
    assert result.requests["prompt_len"].to_pylist() == [5, 10, 5]


INT_LISTS = [
    pa.list_(pa.int32()),
    pa.list_(pa.uint64()),
    pa.large_list(pa.int64()),
    pa.list_(pa.int16(), 2),
]


@pytest.mark.parametrize("kind", INT_LISTS, ids=str)
@pytest.mark.parametrize("column", ["prompt", "prompt_token_ids"])
def test_lists_of_integers_are_token_ids_without_a_tokenizer(run, kind, column):
    ids = pa.array([[5, 6], None, [8, 256]], kind)
    result = run(pa.table({column: ids}), tokenizer=None)
    assert [list(result.store[i]) for i in range(2)] == [[5, 6], [8, 256]]
    assert codes(result) == ["empty_prompt"]


def test_json_rows_may_mix_text_ids_and_chats(run):
    chat = [{"role": "user", "content": "hi"}]
    rows = [
        {"prompt": "text"},
        {"prompt": [104, 105]},
        {"messages": chat},
        {"messages": json.dumps(chat)},
        {"prompt_token_ids": [106], "prompt": None},
    ]
    result = run(rows)
    assert texts(result) == ["text", "hi", repr(chat[0]), repr(chat[0]), "j"]
    assert result.requests["row"].to_pylist() == [0, 1, 2, 3, 4]


def test_text_without_a_tokenizer_is_refused(run):
    with pytest.raises(InputError, match="needs a tokenizer"):
        run([{"prompt_token_ids": [1]}, {"prompt": "x"}], tokenizer=None)


def test_null_fields_that_arrow_invented_do_not_reach_the_template(run):
    call = [{"name": "f", "arguments": {"x": 1}}]
    chats = [
        [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": call}],
        [{"role": "user", "content": "ho", "name": "bo"}],
    ]
    result = run(pa.table({"messages": chats}))
    assert result.rejected.num_rows == 0
    assert [text.count("None") for text in texts(result)] == [0, 0]
    assert texts(result)[1].count("tool_calls") == 0
    assert "bo" in texts(result)[1]


def test_null_fields_written_in_json_are_kept(run):
    chat = [{"role": "user", "content": "hi", "name": None}]
    assert texts(run([{"messages": chat}])) == [repr(chat[0])]


BAD_PROMPTS = [
    ({"prompt": None}, "empty_prompt", "null or absent"),
    ({}, "empty_prompt", "null or absent"),
    ({"prompt": ""}, "empty_prompt", "no tokens"),
    ({"prompt": []}, "empty_prompt", "no tokens"),
    ({"messages": []}, "empty_prompt", "empty list"),
    ({"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, "bad_type", "both set"),
    ({"prompt": 5}, "bad_type", "text or a list of token ids"),
    ({"prompt": {"a": 1}}, "bad_type", "text or a list of token ids"),
    ({"prompt": [1, True]}, "bad_type", "text or a list of token ids"),
    ({"prompt": [1, 1.5]}, "bad_type", "text or a list of token ids"),
    ({"prompt_token_ids": "[1]"}, "bad_type", "a list of token ids"),
    ({"prompt_token_ids": [1, -1]}, "bad_token_id", "-1 at position 1; the vocabulary has 257"),
    ({"prompt": [257]}, "bad_token_id", "257 at position 0"),
    ({"prompt": [2**70]}, "bad_token_id", "64 bits"),
    ({"messages": "hello"}, "bad_type", "not a JSON list"),
    ({"messages": "{}"}, "bad_type", "must be a list"),
    ({"messages": {"role": "user"}}, "bad_type", "must be a list"),
    ({"messages": ["hi"]}, "bad_type", "message 1 must be an object"),
    ({"messages": [{"content": "x"}]}, "bad_type", "message 1 has no role"),
    ({"messages": [{"role": "user"}]}, "bad_type", "content must be text"),
    ({"messages": [{"role": "user", "content": 5}]}, "bad_type", "content must be text"),
    ({"messages": [{"role": "refused", "content": ""}]}, "template_error", "must alternate"),
]


@pytest.mark.parametrize(("row", "code", "message"), BAD_PROMPTS)
def test_a_prompt_that_cannot_run_is_set_aside_with_a_reason(run, row, code, message):
    result = run([{"prompt": "good"}, row, {"prompt": "also"}])
    assert texts(result) == ["good", "also"]
    assert codes(result) == [code]
    assert message in messages(result)[0]
    assert result.rejected["row"].to_pylist() == [1]
    assert result.num_rows == 3


def test_an_empty_text_runs_where_the_tokenizer_adds_a_token(run, bos_tokenizer):
    result = run([{"prompt": ""}], tokenizer=bos_tokenizer)
    assert list(result.store[0]) == [256]


def test_a_prompt_leaves_room_for_one_token_of_answer(run):
    rows = [{"prompt": "x" * n} for n in (8, 9, 10, 11)]
    result = run(rows, context_len=10, defaults=SamplingParams(max_tokens=5))
    assert result.requests["prompt_len"].to_pylist() == [8, 9]
    assert result.requests["max_tokens"].to_pylist() == [2, 1]
    assert codes(result) == ["context_length"] * 2
    assert "11 tokens, the limit is 9" in messages(result)[1]


def test_columns_override_the_defaults_where_they_are_set(run):
    defaults = SamplingParams(
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=11,
        stop=("END",),
        ignore_eos=True,
        stop_token_ids=(3,),
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias=((4, 1.0),),
        logprobs=0,
        prompt_logprobs=7,
        structure=("regex", "a"),
    )
    own = {
        "max_tokens": 3,
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0.25,
        "seed": -5,
        "ignore_eos": False,
        "stop": ["a", "b"],
        "stop_token_ids": [7, 8],
        "repetition_penalty": 1.25,
        "presence_penalty": 1,
        "frequency_penalty": -2,
        "logit_bias": [(5, -100.0), (256, 2.5)],
        "logprobs": 20,
        "prompt_logprobs": 0,
        "structure": {"kind": "regex", "text": "b"},
    }
    given = {name: value for name, value in own.items() if name != "structure"}
    given |= {"logit_bias": {"5": -1e9, "256": 2.5}, "regex": "b"}  # cut to -100
    rows = [{"prompt": "x"}, {"prompt": "x", **given}, {"prompt": "x", **dict.fromkeys(given)}]
    result = run(rows, defaults=defaults).requests
    result = result.drop(["row", "sample", "prompt_len", "expected_len", "content", "score_start"])
    plain = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": pytest.approx(0.9),
        "top_k": 40,
        "min_p": pytest.approx(0.1),
        "seed": 11,
        "stop": ["END"],
        "ignore_eos": True,
        "stop_token_ids": [3],
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": [(4, 1.0)],
        "logprobs": 0,
        "prompt_logprobs": 7,
        "structure": {"kind": "regex", "text": "a"},
    }
    assert result.to_pylist() == [plain, own, plain]


def test_one_stop_text_and_whole_floats_are_taken(run):
    rows = [{"prompt": "x", "stop": "a", "max_tokens": 4.0, "top_k": 2.0, "stop_token_ids": 9}]
    (request,) = run(rows).requests.to_pylist()
    assert (request["stop"], request["max_tokens"], request["top_k"]) == (["a"], 4, 2)
    assert request["stop_token_ids"] == [9]


@pytest.mark.parametrize(
    "bias",
    [
        pa.array([{"5": 1.0, "7": -2.0}, {"5": 3.0}]),  # a struct, with nulls
        pa.array([[(5, 1.0), (7, -2.0)], [(5, 3.0)]], pa.map_(pa.int64(), pa.float64())),
        pa.array([[("5", 1), ("7", -2)], [("5", 3)]], pa.map_(pa.string(), pa.int8())),
        pa.array(['{"5": 1, "7": -2}', '{"5": 3}']),
    ],
    ids=["struct", "map", "text map", "JSON"],
)
def test_a_bias_may_be_of_several_arrow_kinds(run, bias):
    result = run(pa.table({"prompt": ["a", "b"], "logit_bias": bias}))
    assert result.requests["logit_bias"].to_pylist() == [[(5, 1.0), (7, -2.0)], [(5, 3.0)]]


def test_rare_parameters_are_null_where_nobody_sets_them(run):
    (request,) = run([{"prompt": "x"}]).requests.to_pylist()
    assert {request[name] for name in RARE_PARAMS} == {None}


def test_a_row_is_a_request_for_each_of_its_answers(run):
    rows = [{"prompt": "a", "n": 3}, {"prompt": "b", "n": 0}, {"prompt": "c"}, {"prompt": "d"}]
    result = run(rows, defaults=SamplingParams(n=2))
    assert texts(result) == ["a", "a", "a", "c", "c", "d", "d"]
    assert result.requests["row"].to_pylist() == [0, 0, 0, 2, 2, 3, 3]
    assert result.requests["sample"].to_pylist() == [0, 1, 2, 0, 1, 0, 1]
    assert (result.num_rows, codes(result)) == (4, ["bad_parameter"])


def test_a_default_outside_the_vocabulary_is_refused(run):
    with pytest.raises(InputError, match="stop_token_ids"):
        run([{"prompt": "x"}], defaults=SamplingParams(stop_token_ids=(257,)))


def test_no_tokens_may_be_asked_for(run):
    (request,) = run([{"prompt": "x", "max_tokens": 0, "output_len": 3}]).requests.to_pylist()
    assert (request["max_tokens"], request["expected_len"]) == (0, 1)


BAD_PARAMS = [
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_tokens", 2**31),
    ("max_tokens", [5]),
    ("temperature", -0.5),
    ("temperature", "hot"),
    ("temperature", False),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_k", -1),
    ("top_k", 0.5),
    ("min_p", 2),
    ("seed", 2**63),
    ("seed", "a"),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a", 1]),
    ("stop", 3),
    ("stop_token_ids", [1, -2]),
    ("stop_token_ids", 257),
    ("stop_token_ids", [1.5]),
    ("stop_token_ids", "5"),
    ("repetition_penalty", 0),
    ("repetition_penalty", "1"),
    ("presence_penalty", 3),
    ("frequency_penalty", -2.5),
    ("n", 0),
    ("n", 2**14 + 1),
    ("n", "2"),
    ("logprobs", 21),
    ("logprobs", True),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 0.5),
    ("logit_bias", {"257": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"1": "much"}),
    ("logit_bias", {"1": None}),
    ("logit_bias", [5]),
    ("logit_bias", "no JSON"),
    ("logit_bias", 5),
    ("ignore_eos", 1),
    ("ignore_eos", "yes"),
    ("output_len", -1),
    ("output_len", "many"),
]


@pytest.mark.parametrize(("name", "value"), BAD_PARAMS)
def test_a_bad_parameter_sets_its_row_aside_by_name(run, name, value):
    result = run([{"prompt": "x"}, {"prompt": "x", name: value}, {"prompt": "x", name: None}])
    assert codes(result) == ["bad_parameter"]
    assert ("stop" if name == "stop" else name) in messages(result)[0]
    assert result.requests["row"].to_pylist() == [0, 2]


def test_one_is_not_true_among_equal_looking_values(run):
    rows = [{"prompt": "x", "max_tokens": value} for value in (1, True, 1.0)]
    assert run(rows).rejected["row"].to_pylist() == [1]


def test_expected_lengths_lie_between_one_and_max_tokens(run):
    rows = [{"prompt": "x", "output_len": n} for n in (0, 5, 999, None)]
    result = run(rows, defaults=SamplingParams(max_tokens=8))
    assert result.requests["expected_len"].to_pylist() == [1, 5, 8, None]


def test_columns_go_by_the_names_given(run):
    rows = [{"question": "x", "prompt": 5, "budget": 2, "n_out": 1}]
    names = ColumnNames(prompt="question", max_tokens="budget", output_len="n_out")
    (request,) = run(rows, names).requests.to_pylist()
    assert (request["max_tokens"], request["expected_len"]) == (2, 1)


def test_a_bad_parameter_is_told_by_the_name_of_its_column(run):
    result = run([{"prompt": "x", "budget": -2}], ColumnNames(max_tokens="budget"))
    assert messages(result) == ["budget: max_tokens must be 0 or above, not -2"]


@pytest.mark.parametrize("as_parquet", [False, True])
def test_a_file_without_a_prompt_or_with_a_clash_is_refused(run, as_parquet):
    def rows(**columns):
        return pa.table({k: [v] for k, v in columns.items()}) if as_parquet else [columns]

    with pytest.raises(InputError, match="no column 'prompt' or"):
        run(rows(text="x"))
    with pytest.raises(InputError, match="no column 'question'"):
        run(rows(prompt="x"), ColumnNames(prompt="question"))
    with pytest.raises(InputError, match="already has a column 'status'"):
        run(rows(prompt="x", status="y"))
    with pytest.raises(InputError, match="limit"):
        run(rows(prompt="x"), limit=0)


def test_two_columns_of_one_name_are_refused_where_they_matter(run):
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    with pytest.raises(InputError, match="more than one column 'prompt'"):
        run(table)


def test_bad_lines_are_told_with_file_line_and_code(tmp_path, run):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prompt":"a"}\n\nnot json\n{"prompt":"b"}\n[]\n')
    result = run([], paths=[str(path)])
    assert result.num_rows == 4
    assert texts(result) == ["a", "b"]
    assert result.requests["row"].to_pylist() == [0, 2]
    rejected = result.rejected.to_pylist()
    assert [(r["row"], r["line"], r["code"]) for r in rejected] == [
        (1, 3, "bad_json"),
        (3, 5, "bad_json"),
    ]
    assert {r["file"] for r in rejected} == {str(path)} == {s.path for s in result.sources}


def test_rows_are_numbered_over_all_files_and_limited_over_all(tmp_path, run):
    (tmp_path / "a.jsonl").write_text('{"prompt":"a0"}\n{"prompt":"a1"}\n')
    pq.write_table(pa.table({"prompt": ["b0", None, "b2"]}), tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"prompt":"c0"}\n')
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.parquet", "c.jsonl")]
    result = run([], paths=paths)
    assert texts(result) == ["a0", "a1", "b0", "b2", "c0"]
    assert result.requests["row"].to_pylist() == [0, 1, 2, 4, 5]
    assert (result.rejected["row"].to_pylist(), result.rejected["line"].to_pylist()) == ([3], [2])
    assert [source.num_rows for source in result.sources] == [2, 3, 1]
    result = run([], paths=paths, limit=4)
    assert result.num_rows == 4
    assert texts(result) == ["a0", "a1", "b0"]
    assert [source.num_rows for source in result.sources] == [2, 2]


def test_no_rows_are_no_error_and_keep_the_schema(run):
    full = run([{"prompt": "x"}])
    for rows in ([], pa.table({"prompt": pa.array([], pa.string())})):
        empty = run(rows)
        assert empty.num_rows == len(empty.store) == 0
        assert empty.requests.schema == full.requests.schema
        assert empty.rejected.schema == full.rejected.schema


def test_strict_refuses_the_first_bad_row_by_its_place(run, tmp_path):
    rows = [{"prompt": "x"}, {"prompt": "x", "seed": "s"}, {"prompt": 5}]
    strict = InputOptions(strict=True)
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2: bad_parameter: seed must") as told:
        run(rows, options=strict)
    assert "--strict" in told.value.hint
    assert not list((tmp_path / "store").iterdir())
    assert run(rows[:1], options=strict).num_rows == 1


def test_prompts_too_long_are_cut_on_request_and_counted(run):
    rows = [{"prompt": "0123456789abcdef", "max_tokens": 3}, {"prompt": "short"}, {"prompt": ""}]
    result = run(rows, context_len=10, options=InputOptions(truncate="left"))
    assert texts(result) == ["9abcdef", "short"]
    assert result.requests["max_tokens"].to_pylist() == [3, 5]
    assert codes(result) == ["empty_prompt"]
    assert result.notes == ("1 row cut to the context",)


def test_ids_are_told_of_bad_rows_and_checked(run):
    rows = [{"id": i, "prompt": "x"} for i in (7, "7", None, 8, 9, 8)] + [{"id": 10, "prompt": 5}]
    result = run(rows, ColumnNames.from_flags(id="id"))
    assert result.rejected["id"].to_pylist() == ["10"]
    assert result.num_rows == len(texts(result)) + 1 == 7
    assert result.notes == (
        "2 rows with an id that an earlier row has, such as '7'",
        "1 row without an id",
    )
    with pytest.raises(InputError, match="no column 'key'"):
        run(rows, ColumnNames.from_flags(id="key"))


def test_tools_of_a_row_reach_the_template(run):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}]
    chats = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]]
    rows = [{"messages": chats[0], "tools": tools}, {"messages": chats[1]}]
    expected = [repr(tools[0]) + repr(chats[0][0]), repr(chats[1][0])]
    assert texts(run(rows)) == expected
    assert texts(run(pa.Table.from_pylist(rows))) == expected


def test_conversations_are_chats_unless_there_is_another_prompt(run):
    talk = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    roles = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    rendered = "".join(map(repr, roles))
    assert texts(run([{"conversations": talk}])) == [rendered]
    assert texts(run(pa.table({"conversations": [talk]}))) == [rendered]
    assert texts(run([{"conversations": talk, "prompt": "mine"}])) == ["mine"]


@pytest.mark.parametrize("bad_unicode", ["error", "replace"])
def test_half_of_a_surrogate_pair_is_an_error_or_replaced(run, bad_unicode):
    rows = [{"prompt": "a\ud800b"}, {"prompt": "x", "\udc00": 1}, {"prompt": "\U0001f600"}]
    result = run(rows, options=InputOptions(bad_unicode=bad_unicode))
    if bad_unicode == "replace":
        assert texts(result) == ["a\ufffdb", "x", "\U0001f600"]
        assert result.notes == ("2 rows with half of a surrogate pair, read as U+FFFD",)
    else:
        assert texts(result) == ["\U0001f600"]
        assert codes(result) == ["bad_json"] * 2
        assert "surrogate" in messages(result)[0]
    assert dict(result.sources[0].columns) == {"prompt": "string", "\ufffd": "int64"}


def test_a_text_that_begins_with_bos_gets_no_second(run):
    def encode(texts):
        ids = [np.array([256, *text.encode()], np.int32) for text in texts]
        return [np.where(one == ord("^"), 256, one) for one in ids]

    tokenizer = SimpleNamespace(bos_id=256, encode_texts=encode, encode_rendered=encode)
    result = run([{"prompt": "^x"}, {"prompt": "x"}, {"prompt": "^"}], tokenizer=tokenizer)
    assert [list(result.store[i]) for i in range(3)] == [[256, 120], [256, 120], [256]]


def test_batches_do_not_show(run, monkeypatch):
    monkeypatch.setattr(jsonl_reader, "_BATCH_ROWS", 3)
    rows = [{"prompt": f"p{i}", "seed": i} if i % 4 else {"x": i} for i in range(20)]
    result = run(rows)
    good = [i for i in range(20) if i % 4]
    assert result.requests["row"].to_pylist() == good
    assert result.requests["seed"].to_pylist() == good
    assert texts(result) == [f"p{i}" for i in good]
    assert result.rejected["row"].to_pylist() == [0, 4, 8, 12, 16]


def test_progress_grows_to_the_size_of_all_files(run):
    seen = []
    run([{"prompt": "x"}] * 3, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_refused_input_leaves_no_store(tmp_path, run):
    with pytest.raises(InputError, match="needs a tokenizer"):
        run([{"prompt": "x"}], tokenizer=None)
    assert not list((tmp_path / "store").iterdir())


def test_parameters_of_draws_do_not_change_what_a_scored_row_is(run):
    plain = {"prompt": "a", "score": [" b", " c"]}
    changed = {"temperature": 1.0, "seed": 7, "top_p": 0.5, "top_k": 3, "max_tokens": 9}
    content = run([plain, {**plain, **changed}]).requests["content"].to_pylist()
    assert content[:2] == content[2:]
    assert content[0] != content[1]
