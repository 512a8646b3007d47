"""The log of a run must not hide why it stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blendrun.cli import progress
from blendrun.cli.progress import RunProgress
from blendrun.errors import BackendError, DiskFullError


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    raise DiskFullError(f"no room on the disk for {path}")
    yield


def test_a_log_that_finds_no_room_stops_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "full_disk", no_room)
    with pytest.raises(DiskFullError, match=r"run\.log"), RunProgress(tmp_path, 1.0) as shown:
        shown.events().begin(0, 10)


def test_the_error_that_stopped_a_run_is_the_one_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def run() -> None:
        with RunProgress(tmp_path, 1.0) as shown:
            shown.events().begin(0, 10)
            monkeypatch.setattr(progress, "full_disk", no_room)
            raise BackendError("planted")

    with pytest.raises(BackendError, match="planted"):
        run()
