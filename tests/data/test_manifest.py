import json
from pathlib import Path

import pytest

from blendrun.data.manifest import MANIFEST_FILE, Attempt, Manifest, read_manifest, write_manifest
from blendrun.errors import PlanError

IDENTITY = {"job_id": "abc", "dtype": "float32", "ignore_eos": False}


def manifest() -> Manifest:
    made = Manifest.new(Path("plan.json"), IDENTITY)
    attempts = (Attempt("2026-01-01T00:00:00+00:00", 1.0, 2.5, 4.0), Attempt("2026-01-02", 1.5))
    return Manifest(made.format, made.version, made.plan, IDENTITY, {"threads": 2}, attempts, True)


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path):
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, manifest())
    assert read_manifest(tmp_path) == manifest()
    assert [p.name for p in tmp_path.iterdir()] == [MANIFEST_FILE]


def test_a_new_run_names_its_plan_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = Manifest.new(Path("plan.json"), IDENTITY)
    assert made.plan == str(tmp_path / "plan.json")
    assert (made.attempts, made.is_complete) == ((), False)


def test_the_same_job_passes(tmp_path: Path):
    manifest().check_same_job(IDENTITY, tmp_path)


def test_another_job_is_refused_with_the_names_of_what_differs(tmp_path: Path):
    with pytest.raises(PlanError) as caught:
        manifest().check_same_job({**IDENTITY, "dtype": "bfloat16", "ignore_eos": True}, tmp_path)
    assert "dtype was float32, now bfloat16" in caught.value.message.replace("'", "")
    assert "ignore_eos was False, now True" in caught.value.message
    assert "prompts" not in caught.value.message  # job_id is the same
    assert "--run-dir" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "{}", '{"format": "blendrun-run", "version": 99}'])
def test_a_manifest_that_is_none_is_refused(text: str, tmp_path: Path):
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(PlanError, match="manifest"):
        read_manifest(tmp_path)


def test_a_manifest_that_is_a_list_is_refused(tmp_path: Path):
    (tmp_path / MANIFEST_FILE).write_text("[]")
    with pytest.raises(PlanError, match="manifest"):
        read_manifest(tmp_path)


def test_an_unknown_key_is_refused(tmp_path: Path):
    write_manifest(tmp_path, manifest())
    path = tmp_path / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    with pytest.raises(PlanError, match="colour"):
        read_manifest(tmp_path)
