"""vLLM's fake in processes of its own: deaths, restarts and several ranks."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.cli.ranks import RankFlags
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BackendError
from tiny_jobs import SILENT, plan_job
from tiny_vllm import execute_on_vllm, fake_vllm

__all__ = ["fake_vllm"]
pytestmark = pytest.mark.usefixtures("fake_vllm")

ROWS: list[dict[str, Any]] = [
    {"prompt_token_ids": [5 + i % 2, 6, 7, 10 + i], "max_tokens": 8} for i in range(12)
]


def run(plan: Path, run_dir: Path, dp: int, notes: list[str]) -> Any:
    settings = ExecuteSettings(engine="vllm", dtype="float32", flush_interval_s=0.0)
    events = SimpleNamespace(begin=SILENT.begin, step=SILENT.step, note=notes.append)
    with RankFlags(dp).group(dp, settings, events) as group:  # type: ignore[arg-type]
        return execute_plan(plan, run_dir, settings, events, ranks=group)  # type: ignore[arg-type]


@pytest.mark.parametrize("dp", [1, 2])
def test_an_engine_that_dies_is_started_again(
    dp: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute_on_vllm(plan, tmp_path / "unbroken")
    (tmp_path / "deaths").write_text("1")
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"deaths": str(tmp_path / "deaths")}))
    notes: list[str] = []
    assert run(plan, tmp_path / "run", dp, notes).num_errors == 0
    assert len([note for note in notes if "it starts again" in note]) == 1
    tables = [pq.read_table(tmp_path / name / "outputs.parquet") for name in ("unbroken", "run")]
    names = ["output_token_ids", "finish_reason", "status"]
    assert tables[1].select(names).to_pylist() == tables[0].select(names).to_pylist()


def test_an_engine_that_cannot_start_is_not_started_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"start": "no device"}))
    notes: list[str] = []
    with pytest.raises(BackendError, match="does not start: no device"):
        run(plan, tmp_path / "run", 1, notes)
    assert not [note for note in notes if "starts again" in note]
