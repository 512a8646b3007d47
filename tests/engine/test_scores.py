"""Scores of continuations in whole runs, against transformers and lm-evaluation-harness' rule."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.answers import PLAIN_OUTPUT_COLUMNS
from blendrun.data.scores import SCORE_COLUMNS
from blendrun.engine.decoder import Decoder
from blendrun.schedule.plan_file import read_header
from tiny_jobs import execute, plan_files, plan_job, write_rows

TEXT = "question: what is the sum of 12 and 30? answer:"
CHOICES = [" the sum is 42", " the sum is 12", " 42", " a fox, because the dog jumps"]
CHAT = [{"role": "user", "content": "what is the sum?"}]
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT, "score": CHOICES},
    {"prompt": TEXT, "max_tokens": 3},  # generates beside them
    {"prompt": TEXT + " ", "score": [choice[1:] for choice in CHOICES]},  # the space moves
    {"prompt": TEXT, "score": [*reversed(CHOICES)], "prompt_logprobs": 2, "n": 3, "logprobs": 1},
    {"prompt": TEXT + " the sum", "prompt_logprobs": 2, "max_tokens": 0},
    {"messages": CHAT, "score": ["42", "12\n"]},
    {"prompt_token_ids": [7, 8, 9], "score": [[1], [1, 2], [5, 300]]},
    {"prompt_token_ids": [7, 8, 9], "score": ["the", "dog"]},
    {"prompt": TEXT, "score": [[1, 2, 3]]},
    {"prompt": "the quick", "score": [" brown fox"], "temperature": 1.0},
]


def harness_pairs(row: dict[str, Any], tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Context and continuation as `TemplateLM._encode_pair` makes them."""
    if row.get("prompt_token_ids"):
        continuations = [
            one if isinstance(one, list) else tokenizer(one)["input_ids"] for one in row["score"]
        ]
        return [(row["prompt_token_ids"], one) for one in continuations]
    text = row.get("prompt")
    if text is None:
        text = tokenizer.apply_chat_template(
            row["messages"], tokenize=False, add_generation_prompt=True
        )
    pairs = []
    for one in row["score"]:
        if isinstance(one, list):
            pairs.append((tokenizer(text)["input_ids"], one))
            continue
        context = text.rstrip()
        whole = tokenizer(text + one)["input_ids"]
        context_ids = tokenizer(context)["input_ids"]
        pairs.append((context_ids, whole[len(context_ids) :]))
    return pairs


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def expected(row: dict[str, Any], model: Any, tokenizer: Any) -> list[tuple[float, int, bool]]:
    scores = []
    for context, continuation in harness_pairs(row, tokenizer):
        tokens = torch.tensor([context + continuation])
        with torch.inference_mode():
            logprobs = model(tokens[:, :-1]).logits[0].log_softmax(dim=-1)[-len(continuation) :]
        chosen = logprobs.gather(1, torch.tensor(continuation)[:, None]).sum()
        is_greedy = bool((logprobs.argmax(dim=-1) == torch.tensor(continuation)).all())
        scores.append((float(chosen), len(continuation), is_greedy))
    return scores


def outputs(run: Path) -> list[dict[str, Any]]:
    return pq.read_table(run / "outputs.parquet").to_pylist()


def check(made: list[dict[str, Any]], rows: list[dict[str, Any]], model: Any, tokenizer: Any):
    assert len(made) == len(rows)
    for answer, row in zip(made, rows, strict=True):
        assert answer["status"] == "ok", answer["error"]
        if "score" not in row:
            assert [answer[name] for name in SCORE_COLUMNS] == [None] * 3
            continue
        wanted = expected(row, model, tokenizer)
        np.testing.assert_allclose(answer["score_logprobs"], [w[0] for w in wanted], atol=3e-4)
        assert answer["score_num_tokens"] == [w[1] for w in wanted]
        assert answer["score_is_greedy"] == [w[2] for w in wanted]
        context, _ = harness_pairs(row, tokenizer)[0]
        assert answer["num_prompt_tokens"] == len(context)
        assert 0 <= answer["num_cached_tokens"] <= len(context)
        assert (answer["output_text"], answer["output_token_ids"]) == ("", [])


@pytest.mark.parametrize(
    "how",
    [{}, {"prefix_cache": False}, {"chunk_size": 5, "page_size": 3}],
    ids=["default", "no prefix cache", "small chunks"],
)
def test_they_are_those_of_transformers(
    how: dict[str, Any], checkpoint: Path, model: Any, tokenizer: Any, tmp_path: Path
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, max_tokens=4)
    execute(plan, tmp_path / "run", **how)
    made = outputs(tmp_path / "run")
    check(made, ROWS, model, tokenizer)
    assert "output_index" not in made[0]
    assert made[4]["prompt_top_logprobs"][-1] is not None


def test_what_greedy_decoding_gives_is_greedy(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt_token_ids": [7, 8, 9], "max_tokens": 5, "ignore_eos": True}]
    plan, _ = plan_job(tmp_path / "first", rows, checkpoint)
    execute(plan, tmp_path / "first" / "run")
    greedy = outputs(tmp_path / "first" / "run")[0]["output_token_ids"]
    other = [*greedy[:4], (greedy[4] + 1) % 300]
    rows = [{"prompt_token_ids": [7, 8, 9], "score": [greedy, other, greedy[:2]]}]
    plan, _ = plan_job(tmp_path / "second", rows, checkpoint)
    execute(plan, tmp_path / "second" / "run")
    assert outputs(tmp_path / "second" / "run")[0]["score_is_greedy"] == [True, False, True]


def test_the_output_head_sees_each_continuation_token_once(
    checkpoint: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []
    real = Decoder.logits

    def counted(decoder: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return real(decoder, hidden)

    monkeypatch.setattr(Decoder, "logits", counted)
    rows = [{"prompt": TEXT, "score": CHOICES}, {"prompt": TEXT, "score": CHOICES[:2]}]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    execute(plan, tmp_path / "run")
    pairs = harness_pairs(rows[0], tokenizer)
    places = {
        (*context, *continuation[:n])
        for context, continuation in pairs
        for n in range(len(continuation))
    }
    assert sum(seen) == len(places) + len(CHOICES)  # every request draws a token that nobody takes
    first, second = outputs(tmp_path / "run")
    assert second["score_logprobs"] == first["score_logprobs"][:2]


def test_parquet_keeps_the_column_and_its_name_is_free(
    checkpoint: Path, model: Any, tokenizer: Any, tmp_path: Path
):
    table = pa.table(
        {
            "prompt": [TEXT, TEXT],
            "score": [0.5, 1.5],  # of something else
            "choices": pa.array([CHOICES, CHOICES[:1]], pa.large_list(pa.string_view())),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    plan, _ = plan_files(
        tmp_path / "plan.json", [tmp_path / "rows.parquet"], checkpoint, score_column="choices"
    )
    execute(plan, tmp_path / "run")
    made = pq.read_table(tmp_path / "run" / "outputs.parquet")
    assert made.select(table.column_names).equals(table)
    assert made.column_names[3:] == [*PLAIN_OUTPUT_COLUMNS, *SCORE_COLUMNS]
    rows = [{"prompt": TEXT, "score": CHOICES}, {"prompt": TEXT, "score": CHOICES[:1]}]
    check(made.to_pylist(), rows, model, tokenizer)


def test_a_number_named_score_is_no_continuation(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": TEXT, "score": 0.5}], checkpoint, max_tokens=2)
    execute(plan, tmp_path / "run")
    (made,) = outputs(tmp_path / "run")
    assert made["num_output_tokens"] == 2
    assert not made.keys() & set(SCORE_COLUMNS)


def test_a_row_of_which_one_continuation_fails_is_an_error_row(checkpoint: Path, tmp_path: Path):
    long = [9] * 200
    rows = [{"prompt_token_ids": [7], "score": [[1], long, [2]]}, {"prompt": "the", "n": 2}]
    plan, _ = plan_job(tmp_path, rows, checkpoint, max_tokens=2)
    how = {"page_size": 4, "kv_memory": 20 * 4 * 512}
    assert execute(plan, tmp_path / "run", **how).num_errors == 1
    made = outputs(tmp_path / "run")
    assert [row["status"] for row in made] == ["error", "ok", "ok"]
    assert made[0]["error"].startswith("needs_more_memory: 201 tokens")
    assert [row["output_index"] for row in made] == [0, 0, 1]
    execute(plan, tmp_path / "run", retry_errors=True)
    assert outputs(tmp_path / "run")[0]["score_num_tokens"] == [1, 200, 1]


def test_they_are_in_json_lines(checkpoint: Path, tmp_path: Path):
    source = write_rows(tmp_path / "rows.jsonl", ROWS[:2])
    plan, _ = plan_files(tmp_path / "plan.json", [source], checkpoint, max_tokens=1, window=1)
    execute(plan, tmp_path / "run", output_format="jsonl")
    lines = (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()
    scored, generated = map(json.loads, lines)
    assert len(scored["score_logprobs"]) == len(scored["score"]) == len(CHOICES)
    assert generated["score_logprobs"] is None


def test_rows_are_counted_as_the_outputs_have_them(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": "a", "score": [" b", " c", " d"]}, {"prompt": "a"}, {"prompt": 3}]
    plan, _ = plan_job(tmp_path, rows, checkpoint, max_tokens=2)
    result = execute(plan, tmp_path / "run")
    assert (result.num_rows, result.num_errors) == (3, 1)
    notes = read_header(plan)[0].warnings
    assert not any("several answers" in note for note in notes)
