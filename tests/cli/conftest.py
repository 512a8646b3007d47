"""Run command lines in a folder with two small jobs."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from blendrun.cli.main import main
from cli_words import ROWS, TOKEN_ROWS, Blendrun, Said
from tiny_jobs import write_rows


@pytest.fixture
def blendrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Blendrun]:
    """Runs a command line in `tmp_path`, which holds rows.jsonl and tokens.jsonl."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_rows(tmp_path / "rows.jsonl", ROWS)
    write_rows(tmp_path / "tokens.jsonl", TOKEN_ROWS)

    def run(*words: object) -> Said:
        monkeypatch.setattr("sys.argv", ["blendrun", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return Said(code, *capsys.readouterr())

    yield run
    logging.captureWarnings(False)


@pytest.fixture
def planned(blendrun: Blendrun, checkpoint: Path) -> Blendrun:
    said = blendrun(
        "plan", "rows.jsonl", "-o", "plan.json", "--model", checkpoint, "--hardware", "cpu"
    )
    assert said.code == 0
    return blendrun
