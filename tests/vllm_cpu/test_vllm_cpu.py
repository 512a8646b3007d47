"""Whole runs on vLLM: killed, continued, and equal to what `LLM.generate` says."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.cli.execute import FINISHED_WITH_ERROR_ROWS
from blendrun.data.results import ResultJournal, read_steps
from blendrun.report.report import make_report
from tiny_jobs import plan_job
from tiny_models import make_checkpoint

EOS = 2
PREFIX = [5 + i % 200 for i in range(150)]  # more than a block
PLAIN: list[dict[str, Any]] = [
    {"prompt_token_ids": [*PREFIX, 10 + i], "max_tokens": 4 + 5 * (i % 12)} for i in range(40)
]
OTHERS: list[dict[str, Any]] = [
    {"prompt_token_ids": [9, 8, 7], "max_tokens": 12, "repetition_penalty": 1.3},
    {"prompt_token_ids": [9, 8, 6], "max_tokens": 12, "logit_bias": {"11": 3.0}},
    {"prompt_token_ids": [9, 8, 5], "max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "seed": 4},
    {"prompt_token_ids": [9, 8, 4], "max_tokens": 12, "regex": "(ab|cd){2,3}"},
    {"prompt_token_ids": [9, 8, 3], "max_tokens": 5, "logprobs": 2, "prompt_logprobs": 1},
    {"prompt_token_ids": [9, 8, 2], "score": [[3], [4, 5]]},
    {"prompt_token_ids": [10**6], "max_tokens": 5},
]
ROWS = PLAIN + OTHERS


@pytest.fixture(scope="module")
def killed_run(
    environment: dict[str, str], wide_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that was killed when it had answered some rows, and continued."""
    folder = tmp_path_factory.mktemp("job")
    plan, _ = plan_job(folder, ROWS, wide_checkpoint, hardware="cpu")
    command = [
        sys.executable, "-m", "blendrun", "execute", str(plan), "--run-dir", str(folder / "run"),
        "--engine", "vllm", "--dtype", "float32", "--kv-memory", "64MiB", "--max-seqs", "4",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        first = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while first.poll() is None and not list(folder.glob("run/parts/*.parquet")):
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    with ResultJournal(folder / "run") as journal:
        assert 0 < len(journal.finished()) < len(ROWS) - 1
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == FINISHED_WITH_ERROR_ROWS, done.stderr
    return folder / "run"


def answers(run_dir: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run_dir / "outputs.parquet").to_pylist()
    return rows


def generated(
    model: Path, chosen: list[dict[str, Any]], environment: dict[str, str], tmp_path: Path
) -> list[list[int]]:
    """What `LLM.generate` answers to these rows."""
    names = ("repetition_penalty", "logit_bias")
    job = {
        "engine": {"model": str(model), "max_model_len": 256},
        "prompts": [row["prompt_token_ids"] for row in chosen],
        "params": [
            {"max_tokens": row["max_tokens"], "stop_token_ids": [EOS],
             **{name: row[name] for name in names if name in row}}
            for row in chosen
        ],
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    script = Path(__file__).with_name("direct.py")
    said = subprocess.run(
        [sys.executable, script, tmp_path / "job.json"], env=environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    answered: list[list[int]] = json.loads(said.stdout.splitlines()[-1])
    return answered


def test_all_rows_are_accounted_for_after_a_kill(killed_run: Path):
    rows = answers(killed_run)
    assert len(rows) == len(ROWS)
    assert [row["status"] for row in rows] == ["ok"] * (len(ROWS) - 1) + ["error"]
    report = make_report(killed_run)
    assert report.manifest.is_complete
    assert report.metrics.attempts == 2
    assert report.metrics.cached_tokens >= 30 * 128  # a block of the shared beginning, often
    assert sum(read_steps(killed_run)["decode_tokens"].to_pylist()) > 0


def test_greedy_answers_are_those_of_generate(
    killed_run: Path, environment: dict[str, str], wide_checkpoint: Path, tmp_path: Path
):
    chosen = ROWS[: len(PLAIN) + 2]
    found = [row["output_token_ids"] for row in answers(killed_run)[: len(chosen)]]
    assert found == generated(wide_checkpoint, chosen, environment, tmp_path)


def test_a_model_that_only_vllm_runs_is_planned_and_answered(
    environment: dict[str, str], tmp_path: Path
):
    model = make_checkpoint(
        tmp_path / "model", "FalconForCausalLM", hidden_size=256, num_key_value_heads=4
    )
    plan, made = plan_job(tmp_path, PLAIN, model, hardware="cpu", engine="vllm")
    assert "Llama-like layers" in " ".join(made.warnings)
    command = [sys.executable, "-m", "blendrun", "execute", str(plan), "--run-dir",
               str(tmp_path / "run"), "--dtype", "float32", "--kv-memory", "64MiB"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [row["output_token_ids"] for row in answers(tmp_path / "run")]
    assert found == generated(model, PLAIN, environment, tmp_path)


def test_each_parameter_has_its_effect(killed_run: Path):
    *_, structured, logprobs, scored, _ = answers(killed_run)
    assert structured["output_text"].replace("ab", "").replace("cd", "") == ""
    assert 4 <= len(structured["output_text"]) <= 6
    assert len(logprobs["output_logprobs"]) == logprobs["num_output_tokens"]
    assert {len(top) for top in logprobs["output_top_logprobs"]} == {2}
    assert logprobs["prompt_token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["prompt_token_logprobs"][1:])
    assert scored["score_num_tokens"] == [1, 2]
    assert all(value < 0 for value in scored["score_logprobs"])


def test_no_process_is_left(killed_run: Path):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert not [line for line in listed.stdout.splitlines() if str(killed_run) in line]
