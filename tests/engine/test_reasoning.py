"""Reasoning of a model in whole runs: a checkpoint whose template marks it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.exports import RESULTS_FILE
from tiny_jobs import execute, plan_job

QUESTION = [{"role": "user", "content": "what is the sum?"}]


@pytest.fixture(scope="module")
def thinker(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with a template that opens reasoning."""
    folder = tmp_path_factory.mktemp("model") / "thinker"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    end = "{% if thinks %}</think>{% endif %}"
    config["chat_template"] = "{{ messages[0].content }}: {{ '<think>' }}\n" + end
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def outputs(plan: Path, run: Path, **settings: Any) -> list[dict[str, Any]]:
    execute(plan, run, **settings)
    return pq.read_table(run / "outputs.parquet").to_pylist()


def test_a_cut_off_chat_is_all_reasoning(thinker: Path, tmp_path: Path):
    rows = [
        {"custom_id": "a", "messages": QUESTION},
        {"custom_id": "b", "prompt": "what is the sum?"},
        {"custom_id": "c", "prompt": "x <think>", "max_tokens": 0},
    ]
    plan, _ = plan_job(tmp_path, rows, thinker, max_tokens=4, ignore_eos=True)
    chat, plain, empty = outputs(plan, tmp_path / "run", output_format="openai")
    assert chat["output_text"] == ""
    assert len(chat["output_reasoning"]) > 0
    assert chat["num_output_tokens"] == len(chat["output_token_ids"]) == 4
    assert plain["output_reasoning"] == ""
    assert len(plain["output_text"]) > 0
    assert (empty["output_reasoning"], empty["output_text"]) == (None, "")
    lines = (tmp_path / "run" / RESULTS_FILE).read_text().splitlines()
    (choice,) = json.loads(lines[0])["response"]["body"]["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "refusal": None,
        "content": "",
        "reasoning_content": chat["output_reasoning"],
    }
    (choice,) = json.loads(lines[1])["response"]["body"]["choices"]
    assert choice["text"] == plain["output_text"]


def test_what_comes_after_the_end_mark_is_the_answer(thinker: Path, tmp_path: Path):
    pytest.importorskip("llguidance")
    regex = "hm [a-c]{2}\n</think>\n\nyes"
    rows = [{"messages": QUESTION, "regex": regex}, {"prompt": "a", "regex": "<think>" + regex}]
    plan, _ = plan_job(tmp_path, rows, thinker, max_tokens=60)
    for made in outputs(plan, tmp_path / "run"):
        assert made["output_text"] == "yes"
        assert made["output_reasoning"].startswith("hm ")
        assert len(made["output_reasoning"]) == 5
        assert made["finish_reason"] == "stop"


def test_a_structure_without_the_end_mark_is_the_answer(thinker: Path, tmp_path: Path):
    pytest.importorskip("llguidance")
    plan, _ = plan_job(tmp_path, [{"messages": QUESTION, "regex": "yes|no"}], thinker)
    (made,) = outputs(plan, tmp_path / "run")
    assert made["output_text"] in ("yes", "no")
    assert made["output_reasoning"] == ""


def test_marks_that_are_special_tokens_are_found(thinker: Path, tmp_path: Path):
    folder = shutil.copytree(thinker, tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    names = {"<|endoftext|>": "<think>", "<|im_start|>": "</think>"}
    for old, new in names.items():
        vocab[new] = vocab.pop(old)
    for token in tokenizer["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = [{"prompt": "a", "logit_bias": {str(vocab["<think>"]): 100.0}, "max_tokens": 1}]
    rows += [{"prompt": "a<think>", "logit_bias": {str(vocab["</think>"]): 100.0}, "max_tokens": 1}]
    plan, _ = plan_job(tmp_path, rows, folder)
    for made in outputs(plan, tmp_path / "run"):
        assert made["output_token_ids"] in ([vocab["<think>"]], [vocab["</think>"]])
        assert (made["output_reasoning"], made["output_text"]) == ("", "")


def test_a_model_without_marks_has_no_column(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": "a <think>"}], checkpoint, max_tokens=2)
    (made,) = outputs(plan, tmp_path / "run")
    assert "output_reasoning" not in made
