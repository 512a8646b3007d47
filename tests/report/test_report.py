"""Reports of runs of a tiny checkpoint: complete, broken off, moved, without a request."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendrun.engine import torch_backend
from blendrun.errors import BackendError, InputError, PlanError
from blendrun.report.report import make_report, report_json, save_report
from tiny_jobs import execute, plan_job

ROWS = [
    {"prompt": "the quick brown fox jumps", "max_tokens": 8},
    {"prompt": "the quick brown fox runs", "max_tokens": 3},
    {"prompt": None},
    {"prompt": "42", "max_tokens": 20},
]


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A folder with a plan and a complete run of it."""
    plan, _ = plan_job(tmp_path / "job", ROWS, checkpoint)
    execute(plan, tmp_path / "job" / "run")
    return tmp_path / "job"


def test_figures_are_those_of_the_outputs(folder: Path):
    report = make_report(folder / "run")
    values = report.values()
    rows = [
        row
        for row in pq.read_table(folder / "run" / "outputs.parquet").to_pylist()
        if row["status"] == "ok"
    ]
    for name, column in (
        ("prompt_tokens", "num_prompt_tokens"),
        ("cached_tokens", "num_cached_tokens"),
        ("output_tokens", "num_output_tokens"),
    ):
        assert values[name] == sum(row[column] for row in rows)
    assert values["answered_rows"] == len(rows) == 3
    assert values["rows"] == 4
    assert values["prefill_tokens"] == values["computed_prompt_tokens"]
    assert values["decode_tokens"] == values["output_tokens"] - 3  # the first comes with the prompt
    assert values["steps"] > 0
    assert 0 < values["sharing_frac"] <= values["sharing_possible_frac"]


def test_memory_is_told_with_its_parts(folder: Path):
    memory = make_report(folder / "run").peak_memory
    assert memory is not None
    assert memory.peak > memory.weights > 0
    assert memory.above == memory.peak - memory.weights - memory.kv_pages
    values = make_report(folder / "run").values()
    assert values["peak_memory_bytes"] == memory.peak
    assert values["peak_above_bytes"] == memory.above


def test_bounds_are_ordered(folder: Path):
    report = make_report(folder / "run")
    best = report.optimum
    assert best.ideal_s <= best.practical_s
    assert report.ideal_frac == pytest.approx(best.ideal_s / report.metrics.generate_s)
    assert 0 < report.ideal_frac <= report.practical_frac < 1


def test_saved_files_hold_the_same_figures(folder: Path):
    report = make_report(folder / "run")
    saved = save_report(report)
    assert sorted(p.name for p in saved.iterdir()) == [
        "report.json",
        "report.parquet",
        "steps.parquet",
        "timeline.parquet",
    ]
    figures = json.loads((saved / "report.json").read_text())
    assert figures == json.loads(report_json(report))
    table = pq.read_table(saved / "report.parquet").to_pylist()
    assert {row["metric"]: row["value"] for row in table} == pytest.approx(dict(report.values()))
    assert pq.read_table(saved / "timeline.parquet").num_rows == 10
    assert figures["complete"] is True
    assert "\n" not in report_json(report)


def test_saving_twice_replaces_the_report(folder: Path):
    first = save_report(make_report(folder / "run")) / "report.json"
    before = first.read_bytes()
    save_report(make_report(folder / "run"))
    assert first.read_bytes() == before


def test_an_incomplete_run_reports_what_it_has(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    real, left = torch_backend.TorchBackend.run, [6]

    def run(backend, batch):
        left[0] -= 1
        if left[0] < 0:
            raise BackendError("planted failure")
        return real(backend, batch)

    monkeypatch.setattr(torch_backend.TorchBackend, "run", run)
    with pytest.raises(BackendError):
        execute(plan, tmp_path / "run")
    report = make_report(tmp_path / "run")
    assert report.optimum is None
    assert report.ideal_frac is None
    assert report.metrics.steps == 6
    assert 0 < report.metrics.answered_rows < 3
    figures = json.loads(report_json(report))
    assert figures["complete"] is False
    assert figures["practical_frac"] is None
    save_report(report)


def test_a_run_of_only_bad_rows_reports_zeros(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": None}, {"prompt": 3}], checkpoint)
    execute(plan, tmp_path / "run")
    report = make_report(tmp_path / "run")
    save_report(report)
    assert report.metrics.answered_rows == report.metrics.steps == 0
    assert report.values()["rows"] == 2


def test_plan_and_run_can_move_together(folder: Path, tmp_path: Path):
    before = make_report(folder / "run").values()
    shutil.move(folder, tmp_path / "moved")
    assert make_report(tmp_path / "moved" / "run").values() == before


def test_a_folder_without_a_run_is_refused_with_a_way_out(tmp_path: Path):
    with pytest.raises(InputError, match="holds no run") as caught:
        make_report(tmp_path)
    assert "--run-dir" in caught.value.hint


def test_a_run_whose_plan_was_replaced_is_refused(folder: Path, checkpoint: Path):
    plan_job(folder, ROWS[:1], checkpoint)
    with pytest.raises(PlanError, match="not the plan of"):
        make_report(folder / "run")


def test_a_run_whose_plan_is_gone_is_refused(folder: Path):
    (folder / "plan.json").unlink()
    with pytest.raises(PlanError, match="cannot read the plan"):
        make_report(folder / "run")
