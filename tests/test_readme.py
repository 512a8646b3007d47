"""Every blendrun command that the README shows is one that the program understands."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from blendrun.cli.main import app

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown_commands() -> list[list[str]]:
    """Words of each command line in the code blocks that starts with blendrun, without it."""
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in commands if words and Path(words[0]).name == "blendrun"]


def problem(words: list[str], folder: Path) -> str | None:
    """What the program has against a command line; files that it names exist in `folder`."""
    for word in words:
        if Path(word).suffix in (".json", ".jsonl", ".parquet", ".toml"):
            path = folder / word
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    command = typer.main.get_command(app)
    commands = getattr(command, "commands", {})
    if words[0] not in commands:
        return f"no command {words[0]}"
    try:
        commands[words[0]].make_context(words[0], list(words[1:]))
    except Exception as error:
        return None if getattr(error, "exit_code", 1) == 0 else str(error)  # --help exits with 0
    return None


def test_readme_shows_each_verb():
    verbs = {"plan", "inspect", "execute", "simulate", "report", "run", "status", "synth"}
    assert verbs <= {words[0] for words in shown_commands()}


@pytest.mark.parametrize("words", shown_commands(), ids=" ".join)
def test_readme_command_is_understood(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert problem(words, tmp_path) is None


@pytest.mark.parametrize(
    "words", [["plam", "x.jsonl"], ["plan", "x.jsonl", "--no-such-flag"]], ids=" ".join
)
def test_a_wrong_command_would_be_noticed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert problem(words, tmp_path)
