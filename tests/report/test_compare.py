"""Runs beside each other, and a plan against what came of it."""

from pathlib import Path

import pytest

from blendrun.errors import InputError
from blendrun.report.compare import against_plan, differences, job_differs, predicted_well
from blendrun.report.gap import PARTS
from blendrun.report.report import make_report
from blendrun.schedule.plan_file import read_header
from tiny_jobs import execute, plan_job
from tiny_runs import job_rows, simulated_again, simulated_run

ROWS = job_rows(40, 10, 800, 40, (4, 12))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    memory = 2 * 10**9
    return simulated_run(tmp_path_factory.mktemp("runs"), ROWS, policy="dfs", kv_memory=memory)


def test_differences_add_up_and_name_their_cause(run: Path, tmp_path: Path):
    plan = run.parent / "plan.json"
    other = simulated_again(plan, tmp_path / "other", policy="random", kv_memory=2 * 10**9)
    reports = [make_report(run), make_report(other)]
    (found,) = differences(reports)
    assert tuple(found.seconds) == PARTS
    assert sum(found.seconds.values()) == pytest.approx(found.wall_s)
    assert found.wall_s > 0
    assert found.largest == "lost_sharing"
    assert "slower than dfs, most by lost sharing (+" in found.sentence("dfs")
    (back,) = differences(reports[::-1])
    assert back.largest == "lost_sharing"
    assert "faster than random, most by lost sharing (-" in back.sentence("random")
    assert not job_differs(reports)


def test_a_run_does_not_differ_from_itself(run: Path):
    report = make_report(run)
    (found,) = differences([report, report])
    assert found.largest is None
    assert found.wall_s == 0


def test_a_run_without_steps_cannot_be_compared(run: Path, checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": None}], checkpoint)
    execute(plan, tmp_path / "run")
    reports = [make_report(run), make_report(tmp_path / "run")]
    assert job_differs(reports)
    with pytest.raises(InputError, match="has run nothing yet"):
        differences(reports)


def test_a_plan_is_held_against_what_came_of_it(run: Path):
    report = make_report(run)
    plan, _ = read_header(run.parent / "plan.json")
    found = {outcome.name: outcome for outcome in against_plan(report, plan)}
    assert found["requests"].ratio == 1.0
    # lengths are stated, so the bound is met; sharing was planned for all of the memory
    assert found["output_tokens"].ratio == 1.0
    assert found["practical_s"].ratio == pytest.approx(1.0, rel=0.2)
    assert found["predicted_s"].happened == pytest.approx(report.metrics.generate_s)
    took_s, low_s = report.metrics.generate_s, plan.times.predicted_low_s
    assert predicted_well(report, plan) == (low_s <= took_s <= plan.times.predicted_high_s)
