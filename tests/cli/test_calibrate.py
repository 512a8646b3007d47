"""`blendrun calibrate`: a profile, a picture, and plans that use them."""

import json
from pathlib import Path

import pytest

from blendrun.engine import measured_attention, measured_overlap, measured_steps, stopwatch
from cli_words import Blendrun
from tiny_jobs import write_rows


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "MEASURE_S", 0.0)
    monkeypatch.setattr(measured_overlap, "ROUND_S", 0.0)
    monkeypatch.setattr(measured_attention, "CACHED_TOKENS", 8 * 1024)
    monkeypatch.setattr(measured_steps, "_MOST_REQUESTS", 6)


def test_profile_and_picture_are_written_and_a_plan_uses_them(
    checkpoint: Path, tmp_path: Path, blendrun: Blendrun
):
    said = blendrun("calibrate", "--model", checkpoint, "-o", "own.toml")
    assert said.code == 0, said.err
    made = json.loads(said.out.splitlines()[-1])
    assert made["profile"] == "own.toml"
    assert "GFLOP/s" in said.out
    assert "overlap" in said.out
    assert (tmp_path / "own.svg").read_text().startswith("<?xml")
    source = write_rows(tmp_path / "job.jsonl", [{"prompt": "the quick brown fox"}])
    for command in (
        ("plan", source, "-o", "plan.json", "--model", checkpoint, "--hardware", "own.toml"),
        ("simulate", "plan.json"),
    ):
        said = blendrun(*command)
        assert said.code == 0, said.err
    assert "this-cpu" in said.out


def test_unknown_model_is_refused_before_anything_is_measured(blendrun: Blendrun):
    said = blendrun("calibrate", "--model", "./nowhere")
    assert said.code == 2
    assert "measuring" not in said.err
