"""Parameters of a row, in whole runs on a tiny checkpoint; transformers is the reference."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.results import read_steps
from tiny_jobs import execute, plan_job

TEXT = "question: what is the sum of 12 and 30? answer: the "
PROMPTS = [TEXT + "sum", TEXT + "dog", "the quick brown", TEXT + "sum of it"]


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def answer(
    folder: Path, rows: list[dict[str, Any]], checkpoint: Path, how: Any = (), **plan: Any
) -> list[dict[str, Any]]:
    """The output rows of a job."""
    path, _ = plan_job(folder, rows, checkpoint, **plan)
    execute(path, folder / "run", **dict(how))
    return pq.read_table(folder / "run" / "outputs.parquet").to_pylist()


def theirs(model: Any, encoder: Any, prompt: str, **how: Any) -> list[int]:
    """Greedy tokens of transformers."""
    encoded = encoder(prompt, return_tensors="pt")
    made = model.generate(**encoded, do_sample=False, **how)
    return made[0, encoded["input_ids"].shape[1] :].tolist()


def test_stop_strings_end_an_answer_where_transformers_ends_it(
    checkpoint: Path, model: Any, tokenizer: Any, tmp_path: Path
):
    free = answer(tmp_path / "free", [{"prompt": p, "max_tokens": 40} for p in PROMPTS], checkpoint)
    rows = []
    for prompt, made in zip(PROMPTS, free, strict=True):
        middle = made["output_token_ids"][15:18]
        stop = tokenizer.decode(middle).strip("\ufffd")
        rows.append({"prompt": prompt, "max_tokens": 40, "stop": ["never there", stop]})
    for row, made, whole in zip(rows, answer(tmp_path, rows, checkpoint), free, strict=True):
        reference = theirs(
            model,
            tokenizer,
            row["prompt"],
            max_new_tokens=40,
            stop_strings=row["stop"],
            tokenizer=tokenizer,
        )
        assert made["output_token_ids"] == reference
        assert (made["finish_reason"], made["stop_reason"]) == ("stop", row["stop"][1])
        assert whole["output_text"].startswith(made["output_text"] + row["stop"][1])


def test_a_stop_token_is_told(checkpoint: Path, tmp_path: Path):
    row = {"prompt": PROMPTS[0], "max_tokens": 20}
    (free,) = answer(tmp_path / "free", [row], checkpoint)
    token = free["output_token_ids"][7]
    first = free["output_token_ids"].index(token)
    made = answer(tmp_path, [{**row, "stop_token_ids": [token]}, row], checkpoint)
    assert made[0]["output_token_ids"] == free["output_token_ids"][: first + 1]
    assert (made[0]["finish_reason"], made[0]["stop_reason"]) == ("stop", str(token))
    assert (made[1]["finish_reason"], made[1]["stop_reason"]) == ("length", None)


def test_rows_that_want_no_tokens_get_none(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": p, "max_tokens": n} for p, n in zip(PROMPTS, (0, 3, 0, 2), strict=True)]
    made = answer(tmp_path, rows, checkpoint)
    assert [len(row["output_token_ids"]) for row in made] == [0, 3, 0, 2]
    assert [row["finish_reason"] for row in made] == ["length"] * 4
    assert made[0]["output_text"] == ""
    assert made[0]["num_prompt_tokens"] > 0


def test_a_job_that_wants_no_tokens_at_all_runs_nothing(checkpoint: Path, tmp_path: Path):
    made = answer(tmp_path, [{"prompt": p} for p in PROMPTS], checkpoint, max_tokens=0)
    assert [row["status"] for row in made] == ["ok"] * 4
    assert not list((tmp_path / "run" / "steps").iterdir())


# answers are longer than planned, and pages run short
PREEMPTED = {"page_size": 4, "kv_memory": 35 * 4 * 512}
SHORT = {"policy": "arrival", "prior_output_len": 2}


@pytest.mark.parametrize("how", [{}, PREEMPTED], ids=["default", "preempted"])
def test_penalties_and_bias_are_those_of_transformers(
    how: dict[str, Any], checkpoint: Path, model: Any, tokenizer: Any, tmp_path: Path
):
    (favoured,) = tokenizer("fox")["input_ids"][:1]
    rows = [
        {"prompt": PROMPTS[0], "repetition_penalty": 1.4},
        {"prompt": PROMPTS[1], "logit_bias": {str(favoured): 2.5, "17": -100}},
        {"prompt": PROMPTS[2]},
        {"prompt": PROMPTS[3], "repetition_penalty": 0.8, "logit_bias": {"40": 1}},
    ]
    rows = rows * 6 if how else rows
    path, _ = plan_job(tmp_path, rows, checkpoint, max_tokens=30, **SHORT)
    execute(path, tmp_path / "run", **how)
    made = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    for row, ours in zip(rows, made, strict=True):
        bias = {(int(token),): float(b) for token, b in row.get("logit_bias", {}).items()}
        reference = theirs(
            model,
            tokenizer,
            row["prompt"],
            max_new_tokens=30,
            repetition_penalty=row.get("repetition_penalty", 1.0),
            sequence_bias=bias or None,
        )
        assert ours["output_token_ids"] == reference
    preempted = sum(read_steps(tmp_path / "run")["preemptions"].to_pylist())
    assert (preempted > 0) == bool(how)


def test_a_frequency_penalty_makes_an_answer_repeat_itself_less(checkpoint: Path, tmp_path: Path):
    row = {"prompt": PROMPTS[2], "max_tokens": 60}
    many = [{**row, "frequency_penalty": p} for p in (0, 2)] + [{**row, "presence_penalty": 2}]
    plain, often, once = (
        len(set(made["output_token_ids"])) for made in answer(tmp_path, many, checkpoint)
    )
    assert plain < min(often, once)
