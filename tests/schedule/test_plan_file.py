"""A plan comes back as it was written, moves with its inputs, and says what is wrong with it."""

import dataclasses
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendrun.data.sources import check_sources
from blendrun.errors import PlanError
from blendrun.schedule.plan_file import read_plan
from tiny_jobs import SHAPE, plan_files, plan_job, write_rows

ROWS = [{"prompt_token_ids": [1, 2, i], "max_tokens": 4} for i in range(5)]


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    return plan_job(tmp_path, ROWS, SHAPE, stop=["x"])[0]


def test_a_plan_reads_back_as_it_was_made(tmp_path: Path):
    path, made = plan_job(tmp_path, ROWS, SHAPE, stop=["x"])
    read = dataclasses.asdict(read_plan(path).plan)
    written = json.loads(json.dumps(dataclasses.asdict(made)))
    assert len(read.pop("sources")) == 1
    written.pop("sources")
    assert json.loads(json.dumps(read)) == written


def test_plan_is_small_readable_json(plan_path: Path):
    text = plan_path.read_text()
    assert len(text) < 10_000
    assert "\n" in text
    assert not list(plan_path.parent.glob("**/*.tmp"))


def test_a_plan_moves_with_its_inputs(tmp_path: Path):
    source = write_rows(tmp_path / "old" / "in" / "rows.jsonl", ROWS)
    path, _ = plan_files(tmp_path / "old" / "plans" / "plan.json", [source], SHAPE)
    shutil.move(tmp_path / "old", tmp_path / "new")
    stored = read_plan(tmp_path / "new" / "plans" / path.name)
    assert stored.sources[0].path == str(tmp_path / "new" / "in" / "rows.jsonl")
    check_sources(stored.sources)


def test_a_plan_opens_from_another_folder(plan_path: Path, monkeypatch: pytest.MonkeyPatch):
    (plan_path.parent / "deep").mkdir()
    monkeypatch.chdir(plan_path.parent / "deep")
    stored = read_plan(Path("..") / plan_path.name)
    assert stored.sources[0].path == str(plan_path.parent / "rows.jsonl")


def test_a_changed_input_is_noticed(plan_path: Path):
    write_rows(plan_path.parent / "rows.jsonl", ROWS[1:])
    with pytest.raises(PlanError, match=r"rows\.jsonl"):
        check_sources(read_plan(plan_path).sources)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(path: Path) -> PlanError:
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    return caught.value


def test_another_version_is_refused_with_a_way_out(plan_path: Path):
    edit(plan_path, version=99)
    error = refusal(plan_path)
    assert "version 99" in error.message
    assert "plan again" in error.hint


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"format": "blendrun-run", "version": 1}'])
def test_other_json_is_refused_with_a_way_out(text: str, plan_path: Path):
    plan_path.write_text(text)
    error = refusal(plan_path)
    assert "is not a plan" in error.message
    assert "blendrun plan" in error.hint


def test_cut_json_is_refused(plan_path: Path):
    plan_path.write_bytes(plan_path.read_bytes()[:300])
    assert "is not a plan" in refusal(plan_path).message


def test_a_missing_plan_is_refused(tmp_path: Path):
    assert "No such file" in refusal(tmp_path / "plan.json").message


def test_an_unknown_key_is_refused(plan_path: Path):
    edit(plan_path, colour="red")
    assert "colour" in refusal(plan_path).message


SIDECARS = ["requests.parquet", "rejected.parquet", "tree.parquet", "tokens.npy", "offsets.npy"]


@pytest.mark.parametrize("name", SIDECARS)
def test_a_missing_sidecar_is_refused(name: str, plan_path: Path):
    (plan_path.parent / "plan.data" / name).unlink()
    assert "plan.data" in refusal(plan_path).message


@pytest.mark.parametrize("name", SIDECARS)
def test_a_cut_sidecar_is_refused(name: str, plan_path: Path):
    path = plan_path.parent / "plan.data" / name
    path.write_bytes(path.read_bytes()[:-9])
    assert "plan.data" in refusal(plan_path).message


@pytest.mark.parametrize("name", ["requests.parquet", "rejected.parquet"])
def test_a_missing_table_is_refused_with_a_way_out(name: str, plan_path: Path):
    (plan_path.parent / "plan.data" / name).unlink()
    assert refusal(plan_path).hint == "plan again with blendrun plan"


@pytest.mark.parametrize("name", ["plan.json", "tree.parquet", "tokens.npy", "offsets.npy"])
def test_other_damage_is_refused_with_a_way_out(name: str, plan_path: Path):
    path = plan_path if name == "plan.json" else plan_path.parent / "plan.data" / name
    path.write_bytes(path.read_bytes()[:100])
    assert refusal(plan_path).hint


def test_sidecars_of_another_plan_are_refused(plan_path: Path, tmp_path: Path):
    other, _ = plan_job(tmp_path / "other", ROWS[:3], SHAPE)
    path = plan_path.parent / "plan.data" / "requests.parquet"
    shutil.copy(other.parent / "plan.data" / "requests.parquet", path)
    error = refusal(plan_path)
    assert "do not belong" in error.message
    assert error.hint == "plan again with blendrun plan"


def test_rows_set_aside_are_kept_with_their_reason(tmp_path: Path):
    path, _ = plan_job(tmp_path, [*ROWS, {"prompt_token_ids": "text"}], SHAPE)
    (rejected,) = read_plan(path).rejected.to_pylist()
    assert rejected["row"] == 5
    assert rejected["line"] == 6
    assert rejected["message"]
    assert pq.read_table(tmp_path / "plan.data" / "rejected.parquet").num_rows == 1
