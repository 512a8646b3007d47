"""Inputs on the command line: flags that change how rows are read, and odd surroundings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli_words import Blendrun
from tiny_jobs import SHAPE, write_rows

PLAN = ("-o", "plan.json", "--model", SHAPE, "--hardware", "h200")
FULL = {"output_text", "output_token_ids", "status", "error"}


@pytest.mark.parametrize("name", ["no-groups.parquet", "empty.jsonl"])
def test_a_job_without_rows_ends_well_and_loads_no_model(
    name: str,
    blendrun: Blendrun,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("blendrun.engine.attempt.LoadedModel.load", refuse)
    schema = pa.schema([("prompt", pa.string()), ("k", pa.int8())])
    if name.endswith(".parquet"):
        pq.ParquetWriter(tmp_path / name, schema).close()
    else:
        (tmp_path / name).touch()
    said = blendrun("run", name, "-o", "job", "--model", checkpoint)
    assert said.code == 0, said.err
    outputs = pq.read_table(tmp_path / "job" / "outputs.parquet")
    assert outputs.num_rows == 0
    assert set(outputs.column_names) > FULL
    if name.endswith(".parquet"):
        assert outputs.column_names[:2] == schema.names


def test_strict_refuses_and_touches_nothing(blendrun: Blendrun, tmp_path: Path):
    assert blendrun("plan", "tokens.jsonl", *PLAN).code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    bad = write_rows(tmp_path / "bad.jsonl", [{"prompt_token_ids": [1]}, {"x": 1}])
    said = blendrun("plan", "bad.jsonl", *PLAN, "--strict", "-o", "new/deep/plan.json")
    assert said.code == 2
    assert not (tmp_path / "new").exists()
    said = blendrun("plan", "bad.jsonl", *PLAN, "--strict")
    assert said.code == 2
    assert "bad.jsonl, line 2: empty_prompt" in said.err
    assert "hint: " in said.err
    bad.unlink()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_template_and_an_id_column_make_requests_of_a_table(
    blendrun: Blendrun, checkpoint: Path, tmp_path: Path
):
    pq.write_table(pa.table({"text": ["fox", "dog"], "key": [5, 5]}), tmp_path / "t.parquet")
    words = ("plan", "t.parquet", "-o", "p.json", "--model", checkpoint, "--hardware", "cpu")
    said = blendrun(*words, "--template", "the quick brown {text}", "--id-column", "key")
    assert said.code == 0, said.err
    assert "note: 1 row with an id that an earlier row has, such as '5'" in said.out
    missing = blendrun(*words, "--template", "{{ txt }}")
    assert (missing.code, "no column 'txt'" in missing.err) == (2, True)


def test_a_batch_file_is_known_by_its_lines(blendrun: Blendrun, checkpoint: Path, tmp_path: Path):
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "fox"}]}
    rows = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions",
         "body": body | {"stream": i == 2}}
        for i in (1, 2)
    ]  # fmt: skip
    write_rows(tmp_path / "batch.jsonl", rows)
    said = blendrun(
        "plan", "batch.jsonl", "-o", "b.json", "--model", checkpoint, "--hardware", "cpu"
    )
    assert said.code == 0, said.err
    assert "1 bad_parameter" in said.out
    assert "note: 1 row whose body names another model, such as 'gpt-4o'" in said.out
    rejected = pq.read_table(tmp_path / "b.data" / "rejected.parquet").to_pylist()
    assert [(row["line"], row["id"]) for row in rejected] == [(2, "r2")]


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--input-format", "csv"), ("--truncate", "middle"), ("--bad-unicode", "ignore")],
)
def test_a_choice_that_is_none_is_refused_with_the_choices(
    flag: str, value: str, blendrun: Blendrun
):
    said = blendrun("plan", "tokens.jsonl", *PLAN, flag, value)
    assert said.code == 2
    assert f"{flag} must be one of " in said.err


def test_the_locale_changes_no_byte_and_success_is_quiet(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": text, "max_tokens": 2} for text in ("naïve \u2028", "\U0001f600", "")]
    path = tmp_path / "ünï.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    said = {}
    for name, locale in (
        ("c", {"LC_ALL": "C", "PYTHONUTF8": "0"}),
        ("utf8", {"LC_ALL": "C.UTF-8"}),
    ):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
        words = ["plan", path.name, "-o", f"{name}/plan.json", "--model", str(checkpoint)]
        program = [sys.executable, "-m", "blendrun", *words, "--hardware", "cpu"]
        done = subprocess.run(program, cwd=tmp_path, env=environ | locale, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        said[name] = done.stdout.replace(name.encode() + b"/", b"")
    assert said["c"] == said["utf8"]
    tables = [pq.read_table(tmp_path / name / "plan.data" / "rejected.parquet") for name in said]
    assert tables[0] == tables[1]
