"""Log-probabilities in whole runs, against transformers on the whole sequence at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.results import read_steps
from blendrun.engine.decoder import Decoder
from tiny_jobs import execute, plan_files, write_rows

TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "sum", "prompt_logprobs": 3, "logprobs": 2},
    {"prompt": TEXT + "sum", "prompt_logprobs": 0},  # the same prompt
    {"prompt": TEXT[:30], "prompt_logprobs": 5, "max_tokens": 0},  # inside another
    {"prompt": TEXT + "dog and fox", "logprobs": 20, "temperature": 0.8, "top_k": 5},
    {"prompt": TEXT + "sum of it", "prompt_logprobs": 20, "logprobs": 0},
    {"prompt": "the quick brown", "max_tokens": 3},
    {
        "prompt": "the quick brown fox",
        "prompt_logprobs": 1,
        "repetition_penalty": 1.5,
        "logprobs": 1,
    },
    {"prompt_token_ids": [7], "prompt_logprobs": 2},
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # copies that differ in a parameter: equal greedy rows would run once
    copies = [{**row, "stop": f"never {i}"} for i in range(3) for row in ROWS]
    return write_rows(tmp_path_factory.mktemp("input") / "rows.jsonl", copies)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def check(made: dict[str, Any], model: Any, tokenizer: Any) -> None:
    prompt = made["prompt_token_ids"] or tokenizer(made["prompt"])["input_ids"]
    tokens = prompt + made["output_token_ids"]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)
    n = len(prompt)
    parts = {"prompt": range(1, n), "output": range(n, len(tokens))}
    for kind, positions in parts.items():
        name = "prompt_token" if kind == "prompt" else kind
        chosen, top = made[f"{name}_logprobs"], made[f"{kind}_top_logprobs"]
        k = made[{"prompt": "prompt_logprobs", "output": "logprobs"}[kind]]
        if k is None:
            assert chosen is top is None
            continue
        assert (top is None) == (k == 0)
        if kind == "prompt":
            assert chosen[0] is None
            assert top is None or top[0] is None
            chosen, top = chosen[1:], top and top[1:]
        wanted = [float(expected[p - 1, tokens[p]]) for p in positions]
        np.testing.assert_allclose(chosen, wanted, atol=1e-4)
        for place, p in enumerate(positions if k else ()):
            best = expected[p - 1].topk(k)
            found = top[place]
            np.testing.assert_allclose([t["logprob"] for t in found], best.values, atol=1e-4)
            # each alternative has the probability of its own id, whichever of equal ones it is
            own = expected[p - 1, [t["token_id"] for t in found]]
            np.testing.assert_allclose([t["logprob"] for t in found], own, atol=1e-4)
            assert len({t["token_id"] for t in found}) == k


@pytest.mark.parametrize("policy", ["blend", "blendserve", "random"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"prefix_cache": False},
        {"chunk_size": 5, "page_size": 3},
        {"page_size": 4, "kv_memory": 35 * 4 * 512},
    ],
    ids=["default", "no prefix cache", "small chunks", "little memory"],
)
def test_they_are_those_of_transformers(
    policy: str,
    how: dict[str, Any],
    checkpoint: Path,
    rows: Path,
    model: Any,
    tokenizer: Any,
    tmp_path: Path,
):
    plan, _ = plan_files(
        tmp_path / "plan.json", [rows], checkpoint, policy=policy, prior_output_len=2, max_tokens=12
    )
    execute(plan, tmp_path / "run", **how)
    made = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    assert len(made) == 3 * len(ROWS)
    for row in made:
        assert row["status"] == "ok"
        check(row, model, tokenizer)
    if policy == "random" and "kv_memory" in how:
        assert sum(read_steps(tmp_path / "run")["preemptions"].to_pylist()) > 0


@pytest.mark.parametrize("share", [True, False])
def test_the_output_head_sees_each_asked_position_once(
    share: bool, checkpoint: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []
    real = Decoder.logits

    def counted(decoder: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return real(decoder, hidden)

    monkeypatch.setattr(Decoder, "logits", counted)
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint, max_tokens=1)
    execute(plan, tmp_path / "run", prefix_cache=share, chunk_size=30)
    made = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    draws = sum(max(row["num_output_tokens"], 1) for row in made)
    prefixes = {
        tuple(tokens[: n + 1])
        for row in made
        if row["prompt_logprobs"] is not None
        for tokens in [encoded(row, checkpoint)]
        for n in range(len(tokens) - 1)
    }
    assert sum(seen) == draws + len(prefixes)


def encoded(row: dict[str, Any], checkpoint: Path) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return row["prompt_token_ids"] or tokenizer.encode(row["prompt"]).ids


def test_a_job_that_asks_for_none_has_no_columns_for_them(checkpoint: Path, tmp_path: Path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": TEXT}])
    for name, settings in (("off", {}), ("on", {"logprobs": 0, "prompt_logprobs": 0})):
        plan, _ = plan_files(
            tmp_path / f"{name}.json", [rows], checkpoint, max_tokens=2, **settings
        )
        execute(plan, tmp_path / name)
    names = {n: set(pq.read_schema(tmp_path / n / "outputs.parquet").names) for n in ("off", "on")}
    assert names["on"] - names["off"] == {"output_logprobs", "prompt_token_logprobs"}
