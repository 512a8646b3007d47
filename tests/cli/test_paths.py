"""Odd places to write to, readers that leave, and signals: nothing of the user's is lost."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli_words import Blendrun
from tiny_jobs import SHAPE, write_rows

PLAN = ("--model", SHAPE, "--hardware", "h200")


def test_a_plan_does_not_replace_what_is_not_a_regular_file(blendrun: Blendrun, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    said = blendrun("plan", "tokens.jsonl", "-o", "pipe", *PLAN)
    assert said.code == 2
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("output", ["tokens.jsonl/plan.json", "closed/plan.json"])
def test_an_impossible_output_path_is_an_error_without_traceback(
    output: str,
    blendrun: Blendrun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    if output.startswith("closed"):
        monkeypatch.setattr(Path, "mkdir", refuse)
    said = blendrun("plan", "tokens.jsonl", "-o", output, *PLAN)
    assert said.code == 2
    assert "error: " in said.err
    assert "Traceback" not in said.err
    assert (tmp_path / "tokens.jsonl").is_file()


def test_plans_whose_names_differ_behind_a_dot_are_apart(blendrun: Blendrun, tmp_path: Path):
    for name in ("t-0.5", "t-0.7", "t.json"):
        assert blendrun("plan", "tokens.jsonl", "-o", name, *PLAN).code == 0
    folders = {path.name for path in tmp_path.glob("*.data")}
    assert folders == {"t-0.5.data", "t-0.7.data", "t.data"}


def test_foreign_outputs_in_the_run_folder_are_kept(planned: Blendrun, tmp_path: Path):
    mine = tmp_path / "run" / "outputs.parquet"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    said = planned("execute", "plan.json", "--run-dir", "run")
    assert said.code == 2
    assert mine.read_bytes() == b"mine"


@pytest.mark.parametrize("output", ["in/run", "in"])
def test_a_run_inside_its_input_folder_continues(
    output: str,
    planned: Blendrun,
    checkpoint: Path,
    tmp_path: Path,
):
    (tmp_path / "in").mkdir()
    shutil.copy(tmp_path / "rows.jsonl", tmp_path / "in")
    for _ in range(2):
        said = planned("run", "in", "-o", output, "--model", checkpoint, "--max-tokens", 2)
        assert said.code == 0, said.err
    assert "nothing to do" in said.out


def test_sigterm_ends_as_an_interrupt_does(planned: Blendrun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "blendrun.engine.execute.execute_plan",
        lambda *_: signal.raise_signal(signal.SIGTERM),
    )
    before = signal.getsignal(signal.SIGTERM)
    said = planned("execute", "plan.json")
    assert said.code == 130
    assert "the same command continues" in said.err
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_reader_that_leaves_does_not_stop_what_follows(tmp_path: Path):
    script = (
        "from pathlib import Path\n"
        "from blendrun.cli.output import stdout_may_close\n"
        "for _ in range(3):\n"
        "    with stdout_may_close():\n"
        "        print('x' * 100_000)\n"
        "Path('done').touch()\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stdout=writing)
    os.close(writing)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


def test_error_rows_of_plan_and_run_add_up_in_the_json_line(
    blendrun: Blendrun,
    checkpoint: Path,
    tmp_path: Path,
):
    write_rows(tmp_path / "bad.jsonl", [{"prompt": "a quick fox"}, {"prompt": 5}])
    said = blendrun("run", "bad.jsonl", "-o", "out", "--model", checkpoint, "--max-tokens", 2)
    assert said.code == 3
    assert '"error_rows": 1' in said.out.splitlines()[-1]
