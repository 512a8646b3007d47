"""Parameters of a row, in whole runs on a tiny checkpoint; transformers is the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.results import read_answers, read_steps
from blendrun.engine.torch_backend import TorchBackend
from blendrun.errors import BackendError
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
    # different lengths: equal greedy rows would run once
    rows = [{**row, "max_tokens": 30 + i} for i in range(6 if how else 1) for row in rows]
    path, _ = plan_job(tmp_path, rows, checkpoint, **SHORT)
    execute(path, tmp_path / "run", **how)
    made = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    for row, ours in zip(rows, made, strict=True):
        bias = {(int(token),): float(b) for token, b in row.get("logit_bias", {}).items()}
        reference = theirs(
            model,
            tokenizer,
            row["prompt"],
            max_new_tokens=row["max_tokens"],
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


def test_several_answers_share_the_prompt_and_draw_their_own(checkpoint: Path, tmp_path: Path):
    row = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 1.0}
    rows = [{**row, "n": 5}, {"prompt": None}, {**row, "n": 1}, {**row, "n": 3, "temperature": 0}]
    made = answer(tmp_path, rows, checkpoint)
    assert [m["output_index"] for m in made] == [0, 1, 2, 3, 4, 0, 0, 0, 1, 2]
    assert [m["status"] for m in made] == ["ok"] * 5 + ["error"] + ["ok"] * 4
    assert [m["n"] for m in made] == [5] * 5 + [None, 1, 3, 3, 3]
    texts = [tuple(m["output_token_ids"]) for m in made if m["status"] == "ok"]
    assert len(set(texts[:6])) == 6
    assert len(set(texts[6:])) == 1
    prompt_len = made[0]["num_prompt_tokens"]
    computed = sum(read_steps(tmp_path / "run")["prefill_tokens"].to_pylist())
    # the prompt once, and its last token for each answer that runs beside the first
    assert computed == prompt_len + 6
    assert sorted(m["num_cached_tokens"] for m in made if m["status"] == "ok") == (
        [0] + [prompt_len - 1] * 6 + [prompt_len] * 2
    )


def test_an_answer_of_several_does_not_depend_on_how_the_job_is_run(
    checkpoint: Path, tmp_path: Path
):
    rows = [{"prompt": p, "n": 4} for p in PROMPTS]
    plan = {"temperature": 0.9, "max_tokens": 12, "seed": 3}
    found = []
    for name, policy, how in (
        ("one", "blend", {}),
        ("two", "random", {"prefix_cache": False, "chunk_size": 7}),
        ("three", "arrival", PREEMPTED),
    ):
        settings = {**plan, "policy": policy, "prior_output_len": 2}
        made = answer(tmp_path / name, rows, checkpoint, how, **settings)
        found.append([(m["prompt"], m["output_index"], m["output_text"]) for m in made])
    assert found[0] == found[1] == found[2]
    # the first answers are those of a job that asks for no others
    alone = answer(tmp_path / "alone", [{"prompt": p} for p in PROMPTS], checkpoint, **plan)
    assert [m["output_text"] for m in alone] == [text for _, index, text in found[0] if index == 0]


def test_a_broken_run_keeps_single_answers_of_a_row(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [{"prompt": PROMPTS[0], "n": 6, "temperature": 1.0, "max_tokens": 20, "stop": "e"}]
    path, _ = plan_job(tmp_path, rows, checkpoint)
    execute(path, tmp_path / "whole")
    ended = np.cumsum(read_steps(tmp_path / "whole")["finished"].to_numpy())
    real, steps = TorchBackend.run, iter(range(int(np.argmax(ended > 0)) + 1))

    def broken(backend: TorchBackend, batch: Any) -> Any:
        if next(steps, None) is None:
            raise BackendError("planted")
        return real(backend, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "run", broken)
        with pytest.raises(BackendError):
            execute(path, tmp_path / "run")
    assert 0 < read_answers(tmp_path / "run").num_rows < 6
    execute(path, tmp_path / "run")
    whole, made = (
        pq.read_table(tmp_path / name / "outputs.parquet", columns=["output_index", "output_text"])
        for name in ("whole", "run")
    )
    assert made.equals(whole)


def test_equal_greedy_rows_run_once_with_everything_they_ask_for(checkpoint: Path, tmp_path: Path):
    row = {"prompt": PROMPTS[0], "max_tokens": 6, "logprobs": 2, "prompt_logprobs": 1}
    rows = [row, {**row, "max_tokens": 5}, row, {**row, "stop": "never there"}]
    first, shorter, copy, other = answer(tmp_path, rows, checkpoint)
    assert sum(read_steps(tmp_path / "run")["finished"].to_pylist()) == 3
    same = set(first) - {"num_cached_tokens"}
    assert {name: copy[name] for name in same} == {name: first[name] for name in same}
    assert max(m["num_cached_tokens"] for m in (first, copy)) == first["num_prompt_tokens"]
    assert max(m["num_cached_tokens"] for m in (shorter, other)) < first["num_prompt_tokens"]
    assert shorter["output_token_ids"] == first["output_token_ids"][:5]
    alone = answer(tmp_path / "alone", rows, checkpoint, {"prefix_cache": False})
    assert [a["output_token_ids"] for a in alone] == [
        m["output_token_ids"] for m in (first, shorter, copy, other)
    ]
    assert sum(read_steps(tmp_path / "alone" / "run")["finished"].to_pylist()) == 4
