"""Rows that ended as error rows are run again where a person asks for it."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import read_manifest
from blendrun.engine.torch_backend import TorchBackend
from blendrun.errors import BackendError
from blendrun.report.status import read_status
from tiny_jobs import execute, plan_job

SMALL = {"page_size": 4, "kv_memory": 20 * 4 * 512}
ROWS = [
    {"id": "a", "prompt": "the quick brown", "max_tokens": 4},
    {"id": "large", "prompt": "question: what is", "max_tokens": 150},
    {"id": "none", "prompt": None},
    {"id": "b", "prompt": "42", "max_tokens": 3},
]


def statuses(run_dir: Path) -> list[str]:
    return pq.read_table(run_dir / "outputs.parquet")["status"].to_pylist()


@pytest.fixture
def plan(checkpoint: Path, tmp_path: Path) -> Path:
    """A plan whose run, in little memory, leaves one error row beside the one set aside."""
    path, _ = plan_job(tmp_path, ROWS, checkpoint)
    assert execute(path, tmp_path / "run", **SMALL).num_errors == 2
    return path


def parts(run_dir: Path) -> list[list[Any]]:
    return [pq.read_table(p)["row"].to_pylist() for p in sorted((run_dir / "parts").iterdir())]


def test_error_rows_stay_unless_asked(plan: Path, tmp_path: Path):
    result = execute(plan, tmp_path / "run")
    assert (result.was_complete, result.num_errors) == (True, 2)


def test_error_rows_are_run_again_and_nothing_else(plan: Path, tmp_path: Path):
    run_dir = tmp_path / "run"
    before = parts(run_dir)
    result = execute(plan, run_dir, retry_errors=True)
    assert (result.was_complete, result.num_rows, result.num_errors) == (False, 4, 1)
    assert statuses(run_dir) == ["ok", "ok", "error", "ok"]
    large = pq.read_table(run_dir / "outputs.parquet").to_pylist()[1]
    assert (large["error"], large["num_output_tokens"]) == (None, 150)
    assert parts(run_dir)[len(before) :] == [[1]]
    assert read_manifest(run_dir).is_complete
    status = read_status(run_dir)
    assert (status.answered_rows, status.error_rows, status.rows_left) == (3, 1, 0)
    assert execute(plan, run_dir, retry_errors=True).was_complete


def test_a_row_that_fails_again_tells_the_last_reason(plan: Path, tmp_path: Path):
    result = execute(plan, tmp_path / "run", retry_errors=True, page_size=4, kv_memory=25 * 4 * 512)
    assert result.num_errors == 2
    error = pq.read_table(tmp_path / "run" / "outputs.parquet")["error"].to_pylist()[1]
    assert "25 KV pages" in error
    assert len(pq.read_table(tmp_path / "run" / "outputs.parquet")) == 4


def test_a_retry_that_stops_leaves_a_run_to_complete(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = tmp_path / "run"

    def fail(*_: object) -> None:
        raise BackendError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "run", fail)
        with pytest.raises(BackendError):
            execute(plan, run_dir, retry_errors=True)
    assert not read_manifest(run_dir).is_complete
    assert execute(plan, run_dir).num_errors == 2  # without the flag the error row counts
    assert read_manifest(run_dir).is_complete
