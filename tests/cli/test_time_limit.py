"""`--time-limit`: a clean stop, after which the same command continues."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from blendrun.engine import deadline
from cli_words import Blendrun


def test_a_run_that_reaches_its_time_limit_continues_with_the_same_command(
    planned: Blendrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ("execute", "plan.json", "--run-dir", "run", "--time-limit", "1h30m")
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: 1e12))
        said = planned(*words)
    assert said.code == 1
    assert "error: stopped at the time limit of 1 h 30 min" in said.err
    assert "the same command continues" in said.err
    assert not (tmp_path / "run" / "outputs.parquet").exists()
    assert "stopped: " in (tmp_path / "run" / "run.log").read_text()
    assert planned(*words).code == 0
    assert (tmp_path / "run" / "outputs.parquet").exists()


@pytest.mark.parametrize("command", ["execute", "run"])
def test_a_time_limit_that_is_none_is_refused(command: str, blendrun: Blendrun, checkpoint: Path):
    words = ("plan.json",) if command == "execute" else ("rows.jsonl", "--model", checkpoint)
    said = blendrun(command, *words, "--time-limit", "soon")
    assert said.code == 2
    assert "'soon' is not a duration" in said.err
