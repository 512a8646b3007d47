"""Whole runs on two ranks with a real model: the answers are those of one process."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.manifest import read_manifest
from blendrun.data.results import read_steps
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError, TimeLimitError
from blendrun.launch import torch_engine
from blendrun.launch.local import LocalLauncher
from blendrun.launch.rank_group import RankGroup
from blendrun.launch.worker import RankJob
from blendrun.report.report import make_report
from tiny_jobs import SILENT, execute, plan_job

TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "sum", "max_tokens": 12},
    {"prompt": "the quick brown", "max_tokens": 40, "logprobs": 1},
    {"prompt": TEXT + "dog", "max_tokens": 5, "temperature": 1.0, "n": 3},
    {"prompt": TEXT + "sum", "max_tokens": 12},  # a twin
    {"prompt": TEXT[:30], "max_tokens": 9, "score": [" fox", " lazy dog"]},
    {"prompt": "42", "max_tokens": 0},
    {"prompt_token_ids": [10**6]},
    {"prompt": TEXT + "sum of it", "max_tokens": 25},
]


def on_ranks(plan: Path, run_dir: Path, dp: int, **settings: Any) -> Any:
    wanted = ExecuteSettings(dtype="float32", flush_interval_s=0.0, **settings)
    group = RankGroup(LocalLauncher(dp), dp)
    return execute_plan(plan, run_dir, wanted, SILENT, ranks=group)


@pytest.mark.parametrize("window", [None, 5])
def test_answers_are_those_of_one_process(window: int | None, checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, window=window)
    execute(plan, tmp_path / "alone")
    result = on_ranks(plan, tmp_path / "run", 2)
    names = ["output_token_ids", "output_text", "finish_reason", "status", "error", "scores"]
    tables = [pq.read_table(tmp_path / name / "outputs.parquet") for name in ("alone", "run")]
    names = [name for name in names if name in tables[0].column_names]
    assert tables[1].select(names).to_pylist() == tables[0].select(names).to_pylist()
    assert result.num_errors == 1
    ranks = set(read_steps(tmp_path / "run")["rank"].to_pylist())
    assert ranks <= {0, 1}
    manifest = read_manifest(tmp_path / "run")
    assert manifest is not None
    assert manifest.environment["dp"] == 2
    report = make_report(tmp_path / "run")
    assert report.metrics.answered_rows > len(ROWS)
    assert report.metrics.generate_s == pytest.approx(len(ranks) * report.metrics.elapsed_s)
    assert report.metrics.step_s <= report.metrics.generate_s


def test_a_time_limit_stops_all_ranks_and_one_process_continues(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": f"{TEXT} {i}", "max_tokens": 30} for i in range(6)]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    with pytest.raises(TimeLimitError, match="time limit"):
        on_ranks(plan, tmp_path / "run", 2, time_limit_s=0.001)
    assert execute(plan, tmp_path / "run").num_rows == 6


@pytest.mark.parametrize(("rank", "tp", "place"), [(0, 1, 0), (1, 1, 1), (1, 2, 2)])
def test_groups_of_ranks_take_gpus_one_after_the_other(
    rank: int, tp: int, place: int, checkpoint: Path, tmp_path: Path, monkeypatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute(plan, tmp_path / "run")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    places = []
    monkeypatch.setattr(torch_engine, "load_model", lambda *args: places.append(args[2]))

    def job(num_ranks: int) -> RankJob:
        settings = ExecuteSettings(tp=tp)
        return RankJob(rank, num_ranks, num_ranks, plan, tmp_path / "run", settings, 1, range(1),
                       0.0, "")  # fmt: skip

    made = torch_engine.TorchEngine(job(2))
    assert places == [place]
    assert made._kv_memory() is None  # what its GPU has
    with pytest.raises(InputError, match=f"tp {tp} times dp 5 is {5 * tp} ranks"):
        torch_engine.TorchEngine(job(5))
