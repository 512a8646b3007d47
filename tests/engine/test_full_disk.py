"""A disk that is full stops a run; what is there is whole, and it goes on when there is room."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data import disk
from blendrun.data.manifest import read_manifest
from blendrun.data.results import read_answers, read_steps
from blendrun.data.unfinished import read_unfinished
from blendrun.errors import DiskFullError
from tiny_jobs import execute, plan_job

ROWS: list[dict[str, Any]] = [
    {"prompt": "the quick brown", "max_tokens": 30},
    {"prompt": "the quick dog", "max_tokens": 4},
    {"prompt": "42", "max_tokens": 12},
]


def answers(run_dir: Path) -> list[tuple[list[int], str]]:
    table = pq.read_table(run_dir / "outputs.parquet")
    return list(zip(*(table[k].to_pylist() for k in ("output_token_ids", "status")), strict=True))


def fill_disk(
    patch: pytest.MonkeyPatch, name: str, after: int = 0, code: int = errno.ENOSPC
) -> None:
    """After some files with `name` in their names, no further one can be written to its end."""
    real, left = os.fsync, [after]

    def fsync(handle: int) -> None:
        if name in Path(f"/proc/self/fd/{handle}").readlink().name:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(code, os.strerror(code))
        real(handle)

    patch.setattr(disk.os, "fsync", fsync)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("part-", 0),
        ("part-", 1),
        ("steps-", 0),
        ("steps-", 9),
        ("unfinished", 0),
        ("unfinished", 5),
        ("outputs", 0),
        ("manifest", 0),
        (".", 12),  # everything
    ],
)
def test_a_run_goes_on_when_there_is_room(
    name: str, after: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute(plan, tmp_path / "unbroken")
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        fill_disk(patch, name, after)
        for _ in range(2):  # still full
            with pytest.raises(DiskFullError, match=name) as caught:
                execute(plan, run_dir, unfinished_interval_s=0.0)
    assert str(run_dir) in caught.value.message
    assert ".tmp" not in caught.value.message
    assert " to be had" in caught.value.message
    assert "start again" in caught.value.hint
    assert list(run_dir.rglob("*.tmp")) == []
    assert not (run_dir / "outputs.parquet").exists()
    for read in (read_answers, read_steps, read_unfinished, read_manifest):
        read(run_dir)
    execute(plan, run_dir)
    assert answers(run_dir) == answers(tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("name", "needs"), [("part-", r"it needs \d+\.\d KiB"), ("outputs", "it needs about ")]
)
def test_it_is_told_how_much_room_is_missing(
    name: str, needs: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    fill_disk(monkeypatch, name)
    with pytest.raises(DiskFullError, match=needs):
        execute(plan, tmp_path / "run")


def test_a_quota_that_is_used_up_is_told_as_one(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    fill_disk(monkeypatch, "part-", code=errno.EDQUOT)
    with pytest.raises(DiskFullError, match="quota is used up"):
        execute(plan, tmp_path / "run")
