"""Whole runs on a tiny checkpoint: the answers are those of transformers, however they are run."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from blendrun.config import resolve
from blendrun.data.manifest import read_manifest
from blendrun.data.results import ResultJournal, read_answers, read_steps
from blendrun.engine import step_runner, torch_backend
from blendrun.engine.decoder import Decoder
from blendrun.engine.execute import execute_sample
from blendrun.engine.requests import EngineRequests
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BackendError, CapacityError, InputError, PlanError
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.library import BACKEND_VARIABLE
from blendrun.kernels.cpu.shared_prefixes import find_shared_prefixes
from blendrun.report.report import make_report
from blendrun.schedule.orders import POLICIES
from blendrun.schedule.plan_file import read_plan
from blendrun.schedule.planner import plan_again
from blendrun.schedule.settings import PlanSettings
from tiny_groups import load_on_threads
from tiny_jobs import SHAPE, SILENT, execute, ignore_progress, plan_files, plan_job, write_rows
from tiny_models import make_checkpoint

TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": TEXT + "sum", "max_tokens": 12},
    {"id": "b", "prompt": "the quick brown", "max_tokens": 40},
    {"id": "c", "prompt": TEXT + "dog", "max_tokens": 5},
    {"id": "d", "messages": [{"role": "user", "content": "jump over the fox"}], "max_tokens": 20},
    {"id": "e", "prompt": TEXT + "sum", "max_tokens": 30},
    {"id": "f", "prompt": TEXT[:30], "max_tokens": 9},
    {"id": "g", "prompt": "42", "max_tokens": 1},
    {"id": "h", "prompt": TEXT + "sum of it", "max_tokens": 25},
]
KEYS = ("output_token_ids", "output_text", "finish_reason", "status", "error")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("input") / "rows.jsonl", ROWS)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> dict[str, tuple[list[int], list[float]]]:
    """By id: greedy tokens of transformers, and by how much each beat the second best."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    answers = {}
    for row in ROWS:
        text = row.get("prompt") or tokenizer.apply_chat_template(
            row["messages"], tokenize=False, add_generation_prompt=True
        )
        prompt = tokenizer(text, return_tensors="pt", add_special_tokens="prompt" in row)
        made = model.generate(
            **prompt,
            max_new_tokens=row["max_tokens"],
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        start = prompt["input_ids"].shape[1]
        best = [logits[0].topk(2).values for logits in made.logits]
        answers[row["id"]] = (
            made.sequences[0, start:].tolist(),
            [float(two[0] - two[1]) for two in best],
        )
    return answers


def outputs(run_dir: Path) -> list[dict[str, Any]]:
    return pq.read_table(run_dir / "outputs.parquet").to_pylist()


def answers(run_dir: Path) -> list[dict[str, Any]]:
    """What must not depend on how the job was run."""
    return [{key: row[key] for key in KEYS} for row in outputs(run_dir)]


def assert_equal_to_transformers(run_dir: Path, reference) -> None:
    made = outputs(run_dir)
    assert [row["id"] for row in made] == [row["id"] for row in ROWS]
    for row in made:
        tokens, gaps = reference[row["id"]]
        ours = row["output_token_ids"]
        assert row["status"] == "ok"
        same = next(
            (i for i, (a, b) in enumerate(zip(ours, tokens, strict=False)) if a != b), len(tokens)
        )
        near_tie = same < len(tokens) and gaps[same] < 1e-4
        assert near_tie or ours == tokens, row["id"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "how",
    [{}, {"prefix_cache": False, "chunk_size": 2048}, {"chunk_size": 5, "page_size": 3}],
    ids=["default", "no prefix cache", "small chunks"],
)
def test_greedy_answers_are_those_of_transformers(
    policy: str, how: dict[str, Any], checkpoint: Path, rows: Path, reference, tmp_path: Path
):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint, policy=policy)
    result = execute(plan, tmp_path / "run", **how)
    assert (result.num_rows, result.num_errors, result.was_complete) == (8, 0, False)
    assert_equal_to_transformers(tmp_path / "run", reference)
    cached = sum(row["num_cached_tokens"] for row in outputs(tmp_path / "run"))
    assert (cached > 0) == how.get("prefix_cache", True)


@pytest.mark.parametrize("backend", ["cpp", "torch"])
def test_reading_shared_prefixes_at_once_does_not_change_an_answer(
    backend: str,
    checkpoint: Path,
    reference,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    found = []

    def find(*columns: Any) -> Any:
        found.append(find_shared_prefixes(*columns[:-1], cost_len=0))  # the prompts are short
        return found[-1]

    if backend == "cpp" and CpuAttention().backend == "torch":
        pytest.skip(CpuAttention().backend_reason())
    monkeypatch.setattr(step_runner, "find_shared_prefixes", find)
    monkeypatch.setenv(BACKEND_VARIABLE, backend)
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    for shares in (True, False):
        run_dir, num_steps = tmp_path / f"run {shares}", len(found)
        execute(plan, run_dir, shared_prefix_attention=shares, page_size=4)
        assert (len(found) > num_steps) == shares
        assert_equal_to_transformers(run_dir, reference)
    assert any(shared is not None for shared in found)


def test_sharing_computes_each_distinct_prefix_once(checkpoint: Path, rows: Path, tmp_path: Path):
    plan, planned = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    execute(plan, tmp_path / "run")
    steps = read_steps(tmp_path / "run")
    computed = sum(steps["prefill_tokens"].to_pylist())
    unique = planned.counts.unique_prompt_tokens
    # a prompt that lies whole in another one computes its last token again
    assert unique <= computed <= unique + 2
    made = outputs(tmp_path / "run")
    assert sum(row["num_prompt_tokens"] - row["num_cached_tokens"] for row in made) == computed


@pytest.mark.parametrize("policy", ["blendserve", "arrival"])
def test_preemption_does_not_change_an_answer(
    policy: str, checkpoint: Path, reference, tmp_path: Path
):
    # as many requests of each kind as fill the pages with answers that have grown
    # (equal ones would run once)
    many = [
        {**row, "id": f"{row['id']}{copy}", "stop": f"never {copy}"}
        for copy in range(3)
        for row in ROWS
    ]
    plan, _ = plan_job(tmp_path, many, checkpoint, policy=policy)
    execute(plan, tmp_path / "run", page_size=4, kv_memory=35 * 4 * 512)
    steps = read_steps(tmp_path / "run")
    assert sum(steps["preemptions"].to_pylist()) > 0
    assert sum(steps["recomputed_tokens"].to_pylist()) > 0
    assert max(steps["pages_used"].to_pylist()) <= 35
    for row in outputs(tmp_path / "run"):
        tokens, gaps = reference[row["id"][0]]
        assert row["output_token_ids"] == tokens or min(gaps) < 1e-4


def test_draws_do_not_depend_on_how_the_job_is_run(checkpoint: Path, rows: Path, tmp_path: Path):
    found = []
    for name, policy, how in [
        ("one", "dfs", {}),
        ("two", "random", {"chunk_size": 7, "prefix_cache": False}),
        ("three", "blendserve", {"max_seqs": 2, "page_size": 4}),
    ]:
        plan, _ = plan_files(
            tmp_path / f"{name}.json", [rows], checkpoint, policy=policy, temperature=0.9, seed=5
        )
        execute(plan, tmp_path / name, **how)
        found.append(answers(tmp_path / name))
    assert found[0] == found[1] == found[2]
    assert found[0][0]["output_token_ids"] != found[0][4]["output_token_ids"][:12]  # rows differ


def test_another_seed_draws_otherwise(checkpoint: Path, rows: Path, tmp_path: Path):
    for seed in (1, 2):
        plan, _ = plan_files(
            tmp_path / f"{seed}.json", [rows], checkpoint, temperature=1.0, seed=seed
        )
        execute(plan, tmp_path / str(seed))
    assert answers(tmp_path / "1") != answers(tmp_path / "2")


def test_end_of_sequence_stops_unless_ignored(tmp_path: Path):
    folder = make_checkpoint(tmp_path / "model")
    plan, _ = plan_job(tmp_path / "first", ROWS[:2], folder, max_tokens=40)
    execute(plan, tmp_path / "first" / "run")
    token = answers(tmp_path / "first" / "run")[1]["output_token_ids"][3]
    # the same model, for which that token ends an answer
    make_checkpoint(folder, eos_token_id=token)
    plan, planned = plan_job(tmp_path / "second", ROWS[:2], folder, max_tokens=40)
    assert token in planned.model.eos_token_ids
    execute(plan, tmp_path / "second" / "run")
    stopped = answers(tmp_path / "second" / "run")[1]
    assert stopped["finish_reason"] == "stop"
    assert stopped["output_token_ids"][-1] == token
    assert len(stopped["output_token_ids"]) <= 4
    execute(plan, tmp_path / "second" / "whole", ignore_eos=True)
    whole = answers(tmp_path / "second" / "whole")
    assert [row["finish_reason"] for row in whole] == ["length", "length"]
    assert [len(row["output_token_ids"]) for row in whole] == [12, 40]


def test_a_stop_string_ends_the_answer_before_it(checkpoint: Path, rows: Path, tmp_path: Path):
    plan, _ = plan_files(tmp_path / "free.json", [rows], checkpoint)
    execute(plan, tmp_path / "free")
    text = outputs(tmp_path / "free")[1]["output_text"]
    stop = text[len(text) // 2 :][:3]
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint, stop=[stop])
    execute(plan, tmp_path / "run")
    stopped = outputs(tmp_path / "run")[1]
    assert stopped["finish_reason"] == "stop"
    assert stopped["output_text"] == text[: text.find(stop)]


class Failing:
    """Lets `steps` steps of a run pass, then raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        real, self.left = torch_backend.TorchBackend.run, steps

        def run(backend, batch):
            self.left -= 1
            if self.left < 0:
                raise BackendError("planted failure")
            return real(backend, batch)

        monkeypatch.setattr(torch_backend.TorchBackend, "run", run)


@pytest.fixture
def unbroken(checkpoint: Path, rows: Path, tmp_path: Path) -> tuple[Path, list[Any]]:
    """A plan, and the answers of a run of it without trouble."""
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint, temperature=0.7)
    execute(plan, tmp_path / "unbroken")
    return plan, answers(tmp_path / "unbroken")


def test_a_broken_run_continues_and_computes_nothing_twice(
    unbroken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, expected = unbroken
    run_dir = tmp_path / "run"
    for attempt, steps in enumerate([6, 11], start=1):
        with monkeypatch.context() as patch:
            Failing(patch, steps)
            with pytest.raises(BackendError, match="planted"):
                execute(plan, run_dir)
        done = read_answers(run_dir)
        assert 0 < done.num_rows < 8
        manifest = read_manifest(run_dir)
        assert (manifest.is_complete, len(manifest.attempts)) == (False, attempt)
        assert not (run_dir / "outputs.parquet").exists()
    before = {path.name for path in (run_dir / "parts").iterdir()}
    result = execute(plan, run_dir)
    assert not result.was_complete
    assert answers(run_dir) == expected
    new = [path for path in (run_dir / "parts").iterdir() if path.name not in before]
    rows_again = pa.concat_tables([pq.read_table(path) for path in new])["row"].to_pylist()
    assert sorted([*done["row"].to_pylist(), *rows_again]) == list(range(8))
    assert read_manifest(run_dir).is_complete
    assert set(read_steps(run_dir)["attempt"].to_pylist()) == {1, 2, 3}


def test_a_run_continues_under_another_policy_of_the_same_job(
    unbroken, checkpoint: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, expected = unbroken
    with monkeypatch.context() as patch:
        Failing(patch, 6)
        with pytest.raises(BackendError):
            execute(plan, tmp_path / "run")
    other, _ = plan_files(
        tmp_path / "other.json", [rows], checkpoint, temperature=0.7, policy="arrival"
    )
    execute(other, tmp_path / "run", chunk_size=9)
    assert answers(tmp_path / "run") == expected


def test_a_complete_run_has_nothing_to_do(unbroken, tmp_path: Path):
    plan, _ = unbroken
    run_dir = tmp_path / "unbroken"
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*.parquet")}
    result = execute(plan, run_dir)
    assert (result.was_complete, result.num_rows, result.num_errors) == (True, 8, 0)
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*.parquet")} == before
    assert len(read_manifest(run_dir).attempts) == 1


def test_lost_outputs_are_written_again_without_running(
    unbroken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, expected = unbroken
    (tmp_path / "unbroken" / "outputs.parquet").unlink()
    Failing(monkeypatch, 0)
    execute(plan, tmp_path / "unbroken")
    assert answers(tmp_path / "unbroken") == expected


def test_a_run_folder_in_use_is_refused(unbroken, tmp_path: Path):
    plan, _ = unbroken
    with ResultJournal(tmp_path / "run"), pytest.raises(InputError, match="in use"):
        execute(plan, tmp_path / "run")


def test_other_settings_that_change_answers_are_refused_by_name(unbroken, tmp_path: Path):
    plan, _ = unbroken
    with pytest.raises(PlanError, match="dtype was float32, now bfloat16") as caught:
        execute(plan, tmp_path / "unbroken", dtype="bfloat16")
    assert caught.value.hint
    with pytest.raises(PlanError, match="ignore_eos"):
        execute(plan, tmp_path / "unbroken", ignore_eos=True)


@pytest.mark.usefixtures("unbroken")
def test_another_job_in_the_folder_is_refused(checkpoint: Path, rows: Path, tmp_path: Path):
    other, _ = plan_files(tmp_path / "other.json", [rows], checkpoint, temperature=0.2)
    with pytest.raises(PlanError, match="holds another run"):
        execute(other, tmp_path / "unbroken")


def test_other_weights_are_refused_when_a_run_continues(
    checkpoint: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    with monkeypatch.context() as patch:
        Failing(patch, 6)
        with pytest.raises(BackendError):
            execute(plan, tmp_path / "run")
    monkeypatch.setattr(
        "blendrun.data.model_files.ModelFiles.weights_fingerprint", lambda _: "other"
    )
    with pytest.raises(PlanError, match="weights"):
        execute(plan, tmp_path / "run")


def test_another_model_than_the_plans_is_refused(rows: Path, checkpoint: Path, tmp_path: Path):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    other = make_checkpoint(tmp_path / "other", "Qwen2ForCausalLM")
    with pytest.raises(PlanError, match="is not the model of the plan"):
        execute(plan, tmp_path / "run", model=str(other))


def test_a_shape_can_not_be_executed(tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt_token_ids": [1, 2]}], SHAPE)
    with pytest.raises(InputError, match="can be planned, not executed") as caught:
        execute(plan, tmp_path / "run")
    assert "--model" in caught.value.hint


def test_a_changed_input_is_refused_before_anything_runs(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    write_rows(tmp_path / "rows.jsonl", ROWS[::-1])
    with pytest.raises(PlanError, match=r"rows\.jsonl"):
        execute(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_request_larger_than_the_pages_is_an_error_row(checkpoint: Path, tmp_path: Path):
    large = {"id": "large", "prompt": TEXT, "max_tokens": 150}
    plan, _ = plan_job(tmp_path, [ROWS[0], large, ROWS[2]], checkpoint)
    result = execute(plan, tmp_path / "run", page_size=4, kv_memory=20 * 4 * 512)
    assert result.num_errors == 1
    first, error, last = outputs(tmp_path / "run")
    assert (first["status"], last["status"]) == ("ok", "ok")
    assert error["status"] == "error"
    assert error["error"].startswith("needs_more_memory: ")
    assert "20 KV pages of 4" in error["error"]
    assert error["output_token_ids"] in (None, [])


def test_memory_below_one_page_is_refused(checkpoint: Path, rows: Path, tmp_path: Path):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    with pytest.raises(CapacityError, match="less than one KV page"):
        execute(plan, tmp_path / "run", kv_memory=100)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_make_one_error_row(
    temperature: float,
    checkpoint: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint, temperature=temperature)
    row = EngineRequests.of(read_plan(plan), ignore_eos=False).row
    inputs, logits_of = torch_backend.TorchBackend._inputs, Decoder.logits
    batches = []

    def noted(backend, batch, *more):
        batches.append(batch)
        return inputs(backend, batch, *more)

    def spoiled(decoder, hidden):
        logits = logits_of(decoder, hidden)
        request, position = torch_backend._draws(batches[-1])
        logits[torch.from_numpy((row[request] == 1) & (position > 8))] = torch.nan
        return logits

    monkeypatch.setattr(torch_backend.TorchBackend, "_inputs", noted)
    monkeypatch.setattr(Decoder, "logits", spoiled)
    assert execute(plan, tmp_path / "run").num_errors == 1
    made = outputs(tmp_path / "run")
    assert [row["status"] for row in made] == ["ok", "error", *["ok"] * 6]
    assert made[1]["error"].startswith("non_finite_logits: ")


def test_rows_set_aside_by_the_plan_are_error_rows(checkpoint: Path, tmp_path: Path):
    mixed = [{"id": "none"}, ROWS[0], {"id": "both", "prompt": 3}, ROWS[6]]
    plan, _ = plan_job(tmp_path, mixed, checkpoint)
    assert execute(plan, tmp_path / "run").num_errors == 2
    made = outputs(tmp_path / "run")
    assert [row["id"] for row in made] == ["none", "a", "both", "g"]
    assert [row["status"] for row in made] == ["error", "ok", "error", "ok"]
    assert made[0]["error"].split(": ")[0] == "empty_prompt"
    assert "prompt" in made[2]["error"]


def test_a_job_of_only_bad_rows_ends_with_error_rows(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": None}, {"prompt": 5}], checkpoint)
    result = execute(plan, tmp_path / "run")
    assert (result.num_rows, result.num_errors) == (2, 2)
    assert read_manifest(tmp_path / "run").is_complete


def test_bfloat16_runs_and_answers_every_row(checkpoint: Path, rows: Path, tmp_path: Path):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    assert execute(plan, tmp_path / "run", dtype="bfloat16").num_errors == 0
    assert read_manifest(tmp_path / "run").environment["dtype"] == "bfloat16"


def test_float16_is_refused_on_a_cpu(checkpoint: Path, rows: Path, tmp_path: Path):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    with pytest.raises(InputError, match="float16 needs a GPU") as caught:
        execute(plan, tmp_path / "run", dtype="float16")
    assert "bfloat16" in caught.value.hint


def test_dummy_weights_need_no_files_and_are_the_same_on_any_number_of_ranks(
    checkpoint: Path, rows: Path, tmp_path: Path
):
    folder = shutil.copytree(
        checkpoint, tmp_path / "shape", ignore=shutil.ignore_patterns("*.safetensors")
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = 1001  # more than the tokenizer has, as when it is lent
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plan, _ = plan_files(tmp_path / "plan.json", [rows], folder)
    with pytest.raises(InputError, match=r"no \*\.safetensors"):
        execute(plan, tmp_path / "run")
    how = {"load_format": "dummy", "ignore_eos": True}
    execute(plan, tmp_path / "one", **how)
    execute(plan, tmp_path / "two", load_on_threads, tp=2, **how)
    assert answers(tmp_path / "one") == answers(tmp_path / "two")
    assert len({tuple(row["output_token_ids"]) for row in answers(tmp_path / "one")}) > 2
    assert read_manifest(tmp_path / "one").environment["load_format"] == "dummy"


def test_a_run_on_dummy_weights_does_not_go_on_with_others(
    checkpoint: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    with monkeypatch.context() as patch:
        Failing(patch, 6)
        with pytest.raises(BackendError):
            execute(plan, tmp_path / "run", load_format="dummy")
    with pytest.raises(PlanError, match="weights"):
        execute(plan, tmp_path / "run")
    execute(plan, tmp_path / "run", load_format="dummy")
    execute(plan, tmp_path / "real")
    with pytest.raises(PlanError, match="load_format was None, now dummy"):
        execute(plan, tmp_path / "real", load_format="dummy")


def test_manifest_tells_what_ran(checkpoint: Path, rows: Path, tmp_path: Path):
    plan, planned = plan_files(tmp_path / "plan.json", [rows], checkpoint)
    execute(plan, tmp_path / "run", page_size=8, chunk_size=100)
    manifest = read_manifest(tmp_path / "run")
    assert manifest.identity["job_id"] == planned.job_id
    assert (manifest.environment["page_size"], manifest.environment["chunk_size"]) == (8, 100)
    assert manifest.environment["attention_reason"]
    assert all(manifest.environment["kernels"].values())
    assert manifest.environment["shared_prefix_attention"]
    (attempt,) = manifest.attempts
    assert attempt.wall_s >= attempt.generate_s > 0
    steps = read_steps(tmp_path / "run")
    parts_s = sum(np.sum(steps[f"{k}_s"].to_numpy()) for k in ("model", "attention", "sample"))
    assert parts_s <= np.sum(steps["step_s"].to_numpy()) <= attempt.generate_s


@pytest.mark.parametrize("steps", [20, 60])
def test_a_plan_in_windows_answers_as_a_whole_one(
    checkpoint: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
):
    """Every row once, in input order, through a break."""
    whole, _ = plan_files(tmp_path / "whole.json", [rows], checkpoint)
    execute(whole, tmp_path / "whole")
    expected = answers(tmp_path / "whole")
    plan_path, plan = plan_files(tmp_path / "windows.json", [rows], checkpoint, window=3)
    assert [read_plan(tmp_path / w).plan.counts.rows for w in plan.windows] == [3, 3, 2]
    run_dir = tmp_path / "windows"
    with monkeypatch.context() as patch:
        Failing(patch, steps)
        with pytest.raises(BackendError, match="planted"):
            execute(plan_path, run_dir)
    assert 0 < read_answers(run_dir).num_rows < 8
    execute(plan_path, run_dir)
    assert answers(run_dir) == expected
    parts = [pq.read_table(p)["row"].to_pylist() for p in (run_dir / "parts").iterdir()]
    assert sorted(row for part in parts for row in part) == list(range(8))
    report = make_report(run_dir)
    assert report.values()["answered_rows"] == 8
    assert report.optimum is not None
    assert report.values()["practical_frac"] > 0
    with pytest.raises(PlanError, match="window 0"):
        execute(tmp_path / plan.windows[0], tmp_path / "one")
    with pytest.raises(PlanError, match="3 windows"):
        read_plan(plan_path)


def columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def test_a_sample_is_answered_first_and_stays_part_of_the_run(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt_token_ids": [i + 10, 3, 4], "max_tokens": 300 + i} for i in range(40)]
    path, plan = plan_job(tmp_path, rows, checkpoint, prior_output_len=5)
    assert plan.counts.lengths_from == {"prior": 40}
    run_dir = tmp_path / "run"
    settings = ExecuteSettings(dtype="float32", flush_interval_s=0.0)
    execute_sample(path, run_dir, settings, SILENT)
    sampled = read_answers(run_dir)
    assert sampled.num_rows == 16
    assert not (run_dir / "outputs.parquet").exists()
    wanted = {**plan.settings, "lengths_from": [str(run_dir)]}
    resolved = resolve(PlanSettings, {}, wanted, "test")
    again = plan_again(path, resolved, ignore_progress)
    assert again.job_id == plan.job_id
    assert again.counts.lengths_from == {"subtree": 24, "same prompt": 16}
    stored = read_plan(path)
    expected = dict(zip(*columns(stored.requests, "row", "expected_output_len"), strict=True))
    for row, length in zip(*columns(sampled, "row", "num_output_tokens"), strict=True):
        assert expected[row] == length
    execute(path, run_dir)
    assert [row["status"] for row in outputs(run_dir)] == ["ok"] * 40
    parts = [pq.read_table(p)["row"].to_pylist() for p in (run_dir / "parts").iterdir()]
    assert sorted(row for part in parts for row in part) == list(range(40))
