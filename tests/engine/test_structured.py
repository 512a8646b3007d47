"""Answers that must look like something, in whole runs on a tiny checkpoint."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.results import read_steps
from blendrun.data.structures import problem
from blendrun.engine.guides import Guides
from blendrun.errors import InputError
from tiny_jobs import execute, plan_job
from tiny_models import make_checkpoint

TEXT = "question: what is the sum of 12 and 30? answer: the "
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dög", "🙂"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["kind", "count", "tags"],
    "additionalProperties": False,
}
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "dog", "json_schema": SCHEMA},
    {"prompt": TEXT + "dog"},
    {"prompt": TEXT + "sum", "regex": r"(yes|no), [0-9]{2}"},
    {"prompt": TEXT + "sum", "grammar": 'root ::= "<" [a-c]+ ">"'},
    {"prompt": TEXT + "fox", "response_format": {"type": "json_object"}, "max_tokens": 6},
    {"prompt": "the", "json_schema": SCHEMA, "temperature": 1.0, "n": 3},
    {"prompt": "the", "regex": "[a-z ]+", "ignore_eos": True, "max_tokens": 9},
]
KEYS = ("output_text", "output_token_ids", "finish_reason")


def check(row: dict[str, Any]) -> None:
    text = row["output_text"]
    assert row["status"] == "ok"
    if row["finish_reason"] == "length":
        assert row["num_output_tokens"] == row["max_tokens"] or row["regex"] is None
        return
    assert row["stop_reason"] is None
    if row["json_schema"] is not None:
        value = json.loads(text)
        assert list(value) == ["kind", "count", "tags"]
        assert value["kind"] in ("cat", "dög", "🙂")
        assert 0 <= value["count"] <= 99
        assert all(len(tag) <= 3 for tag in value["tags"])
    elif row["regex"] is not None:
        assert re.fullmatch(row["regex"], text)
    elif row["grammar"] is not None:
        assert re.fullmatch("<[a-c]+>", text)


def answer(folder: Path, rows: Any, checkpoint: Path, how: Any = (), **plan: Any) -> list[Any]:
    path, _ = plan_job(folder, rows, checkpoint, **{"max_tokens": 120, **plan})
    execute(path, folder / "run", **dict(how))
    return pq.read_table(folder / "run" / "outputs.parquet").to_pylist()


def test_answers_follow_what_their_rows_ask_for_however_the_job_is_run(
    checkpoint: Path, tmp_path: Path
):
    found = []
    for name, how, plan in (
        ("one", {}, {}),
        ("two", {"prefix_cache": False, "chunk_size": 7}, {"policy": "random"}),
        (
            "three",
            {"page_size": 4, "kv_memory": 60 * 4 * 512},
            {"policy": "arrival", "prior_output_len": 2},
        ),
    ):
        made = answer(tmp_path / name, ROWS, checkpoint, how, **plan)
        found.append([{key: row[key] for key in KEYS} for row in made])
    assert sum(read_steps(tmp_path / "three" / "run")["preemptions"].to_pylist()) > 0
    assert found[0] == found[1] == found[2]
    assert [row["finish_reason"] for row in made[2:3]] == ["stop"]
    for row in made:
        check(row)
    assert sum(row["finish_reason"] == "stop" for row in made) >= 4


def test_rows_without_a_structure_are_what_they_are_without_any(checkpoint: Path, tmp_path: Path):
    row = {"prompt": TEXT + "dog", "max_tokens": 20, "logprobs": 2}
    with_others = answer(tmp_path / "a", [row, {**row, "regex": "[0-9]+"}], checkpoint)
    (alone,) = answer(tmp_path / "b", [row], checkpoint)
    assert {key: with_others[0][key] for key in KEYS} == {key: alone[key] for key in KEYS}
    # the model's own probabilities, not those that the structure leaves
    (_, top) = (row["output_top_logprobs"] for row in with_others)
    assert max(sum(math.exp(one["logprob"]) for one in place) for place in top) < 1
    assert with_others[1]["output_text"].isdecimal()


def test_any_end_of_sequence_token_may_end_an_answer(tmp_path: Path):
    # greedily, the second one is never better than the first unless both are allowed
    folder = make_checkpoint(tmp_path / "model", eos_token_id=[2, 0])
    guides = Guides(folder, 320, (2, 0))
    guide = guides.begin(("regex", "a+"))
    logits = torch.zeros(1, 320)
    logits[0, 0] = 5
    guides.mask(logits, torch.tensor([0]).numpy(), [guide])
    assert logits.argmax() != 0
    guide.consume(int(logits.argmax()))
    logits = torch.zeros(1, 320)
    logits[0, 0] = 5
    guides.mask(logits, torch.tensor([0]).numpy(), [guide])
    assert logits.argmax() == 0


def test_a_schema_that_does_not_compile_is_an_error_row_also_where_only_the_run_can_tell(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [{"prompt": "the"}, {"prompt": "the", "json_schema": {"type": "strange"}}]
    path, plan = plan_job(tmp_path / "here", rows, checkpoint, max_tokens=3)
    assert plan.counts.rejected_by_code == {"bad_schema": 1}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llguidance", None)
        problem.cache_clear()
        path, plan = plan_job(tmp_path / "there", rows, checkpoint, max_tokens=3)
        problem.cache_clear()
        assert plan.counts.rejected == 0
        with pytest.raises(InputError, match="needs llguidance") as caught:
            execute(path, tmp_path / "run")
        assert "blendrun[structured]" in caught.value.hint
    execute(path, tmp_path / "run")
    good, bad = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    assert (good["status"], bad["status"]) == ("ok", "error")
    assert bad["error"].startswith("bad_schema: ")


def test_a_grammar_is_compiled_once_for_all_of_its_rows(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    compiled = []
    real = Guides._compile

    def counted(guides: Guides, structure: Any) -> Any:
        compiled.append(structure)
        return real(guides, structure)

    monkeypatch.setattr(Guides, "_compile", counted)
    rows = [{"prompt": f"the {i}", "regex": f"[a-z]{{{3 + i % 2}}}"} for i in range(8)]
    made = answer(tmp_path, rows, checkpoint, max_tokens=10)
    assert sorted(compiled) == [("regex", "[a-z]{3}"), ("regex", "[a-z]{4}")]
    assert [len(row["output_text"]) for row in made] == [3, 4] * 4
