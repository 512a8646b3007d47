"""Runs on vLLM's fake: order, ends, resume and accounts are those of the native engine."""

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import read_manifest
from blendrun.data.results import read_steps
from blendrun.engine import assembly
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.vllm import bound_cores, prepare_environment
from blendrun.engine.vllm_checks import check_vllm
from blendrun.errors import BackendError, CapacityError, InputError, PlanError
from blendrun.report.report import make_report
from soak.fake_engine import _Backend
from tiny_jobs import execute, plan_job
from tiny_vllm import OneRank, execute_on_vllm, fake_vllm

__all__ = ["fake_vllm"]
pytestmark = pytest.mark.usefixtures("fake_vllm")

TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "sum", "max_tokens": 12},
    {"prompt": "the quick brown", "max_tokens": 40},
    {"prompt": TEXT + "dog", "max_tokens": 25, "ignore_eos": True},
    {"prompt": TEXT + "sum", "max_tokens": 12},  # a twin
    {"prompt": TEXT[:30], "max_tokens": 30, "stop": ["a", "e", "i"]},
    {"prompt": "42", "max_tokens": 0},
    {"prompt_token_ids": [10**6]},
    {"prompt": TEXT + "sum of it", "max_tokens": 35, "stop_token_ids": list(range(3, 60))},
    {"prompt": TEXT * 4, "max_tokens": 6, "n": 2},
    {"prompt": TEXT * 4 + "fox", "max_tokens": 1},
]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda **found: monkeypatch.setenv("FAKE_VLLM", json.dumps(found))


def answers(run_dir: Path, *names: str) -> list[dict[str, Any]]:
    table = pq.read_table(run_dir / "outputs.parquet")
    return table.select(names or [n for n in table.column_names if n != "num_cached_tokens"]
                        ).to_pylist()  # fmt: skip


@pytest.mark.parametrize("settings", [
    {},
    {"chunk_size": 3, "max_seqs": 2},
    {"prefix_cache": False},
    {"policy": "arrival"},
])  # fmt: skip
def test_outputs_are_those_of_the_native_engine(
    settings: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    monkeypatch.setattr(assembly, "TorchBackend", _Backend)
    execute(plan, tmp_path / "native")
    result = execute_on_vllm(plan, tmp_path / "run", **settings)
    assert (result.num_rows, result.num_errors) == (len(ROWS) + 1, 1)
    assert answers(tmp_path / "run") == answers(tmp_path / "native")
    assert {row["finish_reason"] for row in answers(tmp_path / "run")} == {"stop", "length", None}
    assert execute_on_vllm(plan, tmp_path / "run").was_complete


@pytest.mark.parametrize("rule", ["fixed", "ratio"])
def test_where_memory_is_short_vllm_preempts_and_answers_stay_the_same(
    rule: str, checkpoint: Path, tmp_path: Path, faults: Any
):
    rows = [{"prompt_token_ids": [7, 8, i], "max_tokens": 60, "output_len": 3, "ignore_eos": True}
            for i in range(12)]  # fmt: skip
    plan, _ = plan_job(tmp_path, rows, checkpoint, budget=rule)
    execute_on_vllm(plan, tmp_path / "roomy")
    faults(blocks=14)
    execute_on_vllm(plan, tmp_path / "run")
    names = ("output_token_ids", "status")
    assert answers(tmp_path / "run", *names) == answers(tmp_path / "roomy", *names)
    steps = read_steps(tmp_path / "run")
    assert sum(steps["preemptions"].to_pylist()) > 0
    assert sum(steps["recomputed_tokens"].to_pylist()) > 0
    assert max(steps["pages_used"].to_pylist()) <= 13
    assert sum(read_steps(tmp_path / "roomy")["preemptions"].to_pylist()) == 0


def test_steps_count_what_vllm_computed(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute_on_vllm(plan, tmp_path / "run")
    steps, metrics = read_steps(tmp_path / "run"), make_report(tmp_path / "run").metrics
    prefilled = sum(steps["prefill_tokens"].to_pylist())
    rows = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    ran = [row for row in rows if row["status"] == "ok" and row["max_tokens"] != 0]
    ran = [r for r in ran if r["num_cached_tokens"] != r["num_prompt_tokens"]]
    assert prefilled == sum(r["num_prompt_tokens"] - r["num_cached_tokens"] for r in ran)
    assert sum(steps["decode_tokens"].to_pylist()) == sum(r["num_output_tokens"] - 1 for r in ran)
    assert metrics.cached_tokens > 0


def test_rows_that_vllm_refuses_become_error_rows_with_its_message(
    checkpoint: Path, tmp_path: Path, faults: Any
):
    rows = [
        {"prompt_token_ids": [5] * 40, "max_tokens": 4},
        {"prompt_token_ids": [5, 6], "max_tokens": 4},
        {"prompt_token_ids": [5, 7], "max_tokens": 4, "frequency_penalty": 2.0},
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    faults(longest=30)
    result = execute_on_vllm(plan, tmp_path / "run", chunk_size=8)
    assert result.num_errors == 2
    found = answers(tmp_path / "run", "status", "error", "num_output_tokens")
    assert found[0]["error"] == "refused_by_vllm: The prompt of 40 tokens is too long"
    assert found[1]["status"] == "ok"
    assert found[2]["error"] == "refused_by_vllm: frequency_penalty of two"
    faults()
    result = execute_on_vllm(plan, tmp_path / "run", retry_errors=True)
    assert result.num_errors == 1


def test_a_row_that_vllm_ends_too_early_is_an_error_row(
    checkpoint: Path, tmp_path: Path, faults: Any
):
    rows = [{"prompt_token_ids": [5, 6], "max_tokens": 3, "ignore_eos": True},
            {"prompt_token_ids": [7, 6], "max_tokens": 9, "ignore_eos": True}]  # fmt: skip
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    faults(most_tokens=5)
    execute_on_vllm(plan, tmp_path / "run")
    found = answers(tmp_path / "run", "error")
    assert [row["error"] for row in found] == [None, "ended_by_vllm: length"]


def test_requests_come_in_the_planned_order_and_no_more_than_may_run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [{"prompt_token_ids": [5 + i % 3, 6, 7, 10 + i], "max_tokens": 6} for i in range(30)]
    plan, _ = plan_job(tmp_path, rows, checkpoint, policy="dfs-sets")
    dfs, arrival = OneRank(monkeypatch), OneRank(monkeypatch)
    execute_on_vllm(plan, tmp_path / "arrival", arrival, policy="arrival", max_seqs=4)
    assert [tokens for _, tokens, _ in arrival.added] == [r["prompt_token_ids"] for r in rows]
    assert arrival.most_unfinished <= 4
    manifest = read_manifest(tmp_path / "arrival")
    assert manifest is not None
    assert manifest.environment["policy"] == "arrival"
    dfs.added.clear()
    execute_on_vllm(plan, tmp_path / "dfs", dfs, max_seqs=4)
    firsts = [tokens[0] for _, tokens, _ in dfs.added]
    assert len(firsts) == 30
    assert sum(a != b for a, b in itertools.pairwise(firsts)) == 2


def test_an_interrupted_run_goes_on_where_that_changes_nothing(
    checkpoint: Path, tmp_path: Path, faults: Any, monkeypatch: pytest.MonkeyPatch
):
    rows: list[dict[str, Any]] = [
        {"prompt_token_ids": [5, i], "max_tokens": 30, "ignore_eos": True, **more}
        for i, more in enumerate(
            [{}, {"temperature": 1.0, "seed": 3}, {"repetition_penalty": 1.1},
             {"presence_penalty": 0.5}, {"logprobs": 2}]
        )
    ]  # fmt: skip
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    execute_on_vllm(plan, tmp_path / "unbroken")
    (tmp_path / "deaths").write_text("1")
    faults(deaths=str(tmp_path / "deaths"))
    with pytest.raises(RuntimeError, match="has died"):
        execute_on_vllm(plan, tmp_path / "run")
    rank = OneRank(monkeypatch)
    execute_on_vllm(plan, tmp_path / "run", rank)
    assert answers(tmp_path / "run") == answers(tmp_path / "unbroken")
    known = {tokens[1]: (len(tokens), params) for _, tokens, params in rank.added}
    assert {i: n for i, (n, _) in known.items()} == {0: 4, 1: 2, 2: 4, 3: 2, 4: 4}
    assert known[0][1].max_tokens == 28


def test_parameters_are_passed_on(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn = {"temperature": 0.5, "top_p": 0.75, "top_k": 5, "min_p": 0.25, "seed": 9}
    edits = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    rows: list[dict[str, Any]] = [
        {"prompt_token_ids": [5, 1], "max_tokens": 4, **drawn},
        {"prompt_token_ids": [5, 2], "max_tokens": 5, **edits, "logit_bias": {"7": 2.0}},
        {"prompt_token_ids": [5, 3], "max_tokens": 6, "ignore_eos": True, "regex": "a+"},
        {"prompt_token_ids": [5, 4], "max_tokens": 7, "ignore_eos": True, "stop_token_ids": [9]},
        {"prompt_token_ids": [5, 4], "max_tokens": 7, **drawn, "n": 2},
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    rank = OneRank(monkeypatch)
    execute_on_vllm(plan, tmp_path / "run", rank)
    params = {(tuple(tokens), p.max_tokens, p.seed): p for _, tokens, p in rank.added}
    by_row = {tokens: p for (tokens, _, _), p in params.items()}
    first = by_row[5, 1]
    for name in ("temperature", "top_p", "top_k", "min_p"):
        assert getattr(first, name) == drawn[name]
    assert 0 <= first.seed < 2**63
    assert len({p.seed for p in params.values() if p.seed is not None}) == 3
    for name, value in edits.items():
        assert getattr(by_row[5, 2], name) == pytest.approx(value)
    assert by_row[5, 2].logit_bias == {7: 2.0}
    assert (by_row[5, 2].temperature, by_row[5, 2].seed) == (0, None)
    assert by_row[5, 2].stop_token_ids == [2]
    assert by_row[5, 3].structured_outputs.regex == "a+"
    assert by_row[5, 3].stop_token_ids == [2]  # the structure's end is the end
    assert [p.stop_token_ids for (_, n, seed), p in params.items() if (n, seed) == (7, None)] == [
        [9]
    ]


def test_log_probabilities_and_scores_are_vllms(checkpoint: Path, tmp_path: Path):
    rows: list[dict[str, Any]] = [
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "logprobs": 2, "ignore_eos": True},
        {"prompt_token_ids": [5, 6, 8], "max_tokens": 0, "prompt_logprobs": 1},
        {"prompt_token_ids": [5, 6], "score": [[9], [10, 11, 12]]},
        {"prompt_token_ids": [5, 8], "max_tokens": 3, "prompt_logprobs": 0, "ignore_eos": True},
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    execute_on_vllm(plan, tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    assert table[0]["output_logprobs"] == [-1.0] * 4
    tops = table[0]["output_top_logprobs"]
    assert [[one["logprob"] for one in top] for top in tops] == [[-1.0, -2.0]] * 4
    assert [top[0]["token_id"] for top in tops] == table[0]["output_token_ids"]
    assert table[1]["prompt_token_logprobs"] == [None, -1.0, -1.0]
    assert table[1]["num_output_tokens"] == 0
    assert table[3]["prompt_token_logprobs"] == [None, -1.0]
    assert table[2]["score_logprobs"] == [-1.0, -3.0]
    assert table[2]["score_num_tokens"] == [1, 3]
    assert table[2]["score_is_greedy"] == [True, True]


def test_windows_run_one_after_the_other(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, window=4)
    assert execute_on_vllm(plan, tmp_path / "run").num_rows == len(ROWS) + 1


def test_the_report_says_what_it_cannot_know(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute_on_vllm(plan, tmp_path / "run")
    report = make_report(tmp_path / "run")
    values = report.values()
    assert values["attention_s"] is values["sample_s"] is None
    assert values["preemptions"] == 0
    assert report.unknown == ("attention_s", "sample_s")


def test_a_scheduler_of_another_kind_is_left_as_it_is(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from vllm.v1.core.sched.scheduler import Scheduler

    monkeypatch.delattr(Scheduler, "_preempt_request")
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    assert execute_on_vllm(plan, tmp_path / "run").num_errors == 1
    values = make_report(tmp_path / "run").values()
    assert values["preemptions"] is values["prefill_tokens"] is None


def test_a_run_of_one_engine_is_not_continued_with_the_other(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute_on_vllm(plan, tmp_path / "run")
    with pytest.raises(PlanError, match="engine was vllm, now native"):
        execute(plan, tmp_path / "run")


def test_what_vllm_says_when_it_does_not_start_ends_the_run(
    checkpoint: Path, tmp_path: Path, faults: Any
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    faults(start="no device")
    with pytest.raises(BackendError, match="does not start: no device"):
        execute_on_vllm(plan, tmp_path / "run")
    faults(start="not enough memory for KV")
    with pytest.raises(CapacityError, match="not enough memory"):
        execute_on_vllm(plan, tmp_path / "run")


@pytest.mark.parametrize(("settings", "name"), [
    ({"deterministic": True}, "--deterministic"),
    ({"shared_prefix_attention": False}, "--no-shared-prefix-attention"),
])  # fmt: skip
def test_what_vllm_lacks_is_refused_by_name(settings: Any, name: str):
    with pytest.raises(InputError, match=name):
        check_vllm(ExecuteSettings(engine="vllm", **settings))


def test_policies_that_need_a_plan_of_their_own_are_refused(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    for policy, said in (("blendserve", "plan again with"), ("fastest", "must be one of")):
        with pytest.raises(InputError) as error:
            execute_on_vllm(plan, tmp_path / "run", policy=policy)
        assert said in f"{error.value.message} {error.value.hint}"


def test_ranks_get_cores_and_devices_of_their_own(monkeypatch: pytest.MonkeyPatch):
    import os

    assert bound_cores([0, 1, 2, 3], 2) == "0,1|2,3"
    assert bound_cores([4], 2) == "4|4"
    prepare_environment(1, [1, 0], None)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    prepare_environment(2, [2, 3], range(2, 4))
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "2|3"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"
