"""`blendrun report`: one run, several, a plan against its run, and a run that goes on."""

import json
import re
from pathlib import Path

import pytest

from blendrun.cli import follow
from blendrun.data.lock import take_lock
from blendrun.data.results import LOCK_FILE
from blendrun.report.gap import PARTS
from blendrun.units import format_difference, format_seconds
from cli_words import Blendrun
from tiny_jobs import write_rows


@pytest.fixture
def simulated(blendrun: Blendrun, tmp_path: Path) -> Blendrun:
    """With simulated runs plan.sim/dfs and plan.sim/random."""
    rows = [
        {"prompt_token_ids": [*([i % 5] * 40), 100 + i], "max_tokens": 90, "output_len": 2 + i % 9}
        for i in range(60)
    ]
    write_rows(tmp_path / "job.jsonl", rows)
    said = blendrun(
        "plan", "job.jsonl", "-o", "plan.json", "--model", "configs/models/llama-3.1-8b.toml",
        "--hardware", "h200",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert blendrun("simulate", "plan.json", "--policy", "dfs,random").code == 0
    return blendrun


def last_line(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def test_the_screen_says_where_the_time_went_and_what_to_change(
    simulated: Blendrun, tmp_path: Path
):
    said = simulated("report", "plan.sim/dfs")
    assert (said.code, said.err) == (0, "")
    assert "of the practical optimum; largest cost: " in said.out
    assert "why, and what to change" in said.out
    for line in ("ideal optimum", "= practical optimum", "unexplained", "= wall time"):
        assert f"\n{line}  " in said.out
    assert "\x1b" not in said.out  # plain where it is not a terminal
    found = last_line(said.out)
    total = sum(found[f"gap_{part}_s"] for part in PARTS)
    assert total == pytest.approx(found["gap_wall_s"])
    assert found["gap_largest"] in PARTS
    names = {path.name for path in (tmp_path / "plan.sim" / "dfs" / "report").iterdir()}
    assert {"report.parquet", "report.json", "steps.parquet", "report.html"} <= names


def test_several_runs_are_one_table_with_what_differs(simulated: Blendrun):
    said = simulated("report", "plan.sim/dfs", "plan.sim/random")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("plan.sim/random: ")
    assert "than plan.sim/dfs" in said.out
    found = last_line(said.out)
    assert [run["run"] for run in found["runs"]] == ["plan.sim/dfs", "plan.sim/random"]
    (difference,) = found["differences"]
    walls = [run["gap_wall_s"] for run in found["runs"]]
    assert difference["wall_s"] == pytest.approx(walls[1] - walls[0])


def test_a_column_says_what_differs_between_two_runs(simulated: Blendrun):
    said = simulated("report", "plan.sim/dfs", "plan.sim/random")
    assert re.search(r"plan\.sim/random +difference\n", said.out)
    walls = [run["gap_wall_s"] for run in last_line(said.out)["runs"]]
    shown = [format_seconds(wall_s) for wall_s in walls] + [format_difference(walls[1] - walls[0])]
    (line,) = (line for line in said.out.splitlines() if line.startswith("= wall time"))
    assert line.split()[3:] == " ".join(shown).split()
    three = simulated("report", "plan.sim/dfs", "plan.sim/random", "plan.sim/dfs")
    assert "difference\n" not in three.out


def test_a_plan_against_its_run(simulated: Blendrun):
    said = simulated("report", "plan.sim/dfs", "--against", "plan.json")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("plan.json predicted ")
    assert "another job" not in said.out
    found = {outcome["name"]: outcome for outcome in last_line(said.out)["outcomes"]}
    assert found["output_tokens"]["ratio"] == 1.0
    assert "note:" not in said.out


def test_a_plan_against_a_run_on_other_ranks_says_so(simulated: Blendrun):
    words = ("--policy", "dfs", "--dp", "2", "--run-dir", "two.sim")
    assert simulated("simulate", "plan.json", *words).code == 0
    said = simulated("report", "two.sim", "--against", "plan.json")
    assert "note: the plan is for dp 1, the run has dp 2\n" in said.out


def test_several_runs_have_no_single_plan(simulated: Blendrun):
    for words in (["--against", "plan.json"], ["--follow"]):
        said = simulated("report", "plan.sim/dfs", "plan.sim/random", *words)
        assert said.code == 2
        assert "take one run" in said.err


def test_following_looks_until_no_process_works_on_the_run(
    simulated: Blendrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock = take_lock(tmp_path / "plan.sim" / "dfs" / LOCK_FILE)
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            lock.close()

    monkeypatch.setattr(follow.time, "sleep", sleep)
    said = simulated("report", "plan.sim/dfs", "--follow")
    assert (said.code, said.err) == (0, "")
    lines = [line for line in said.out.splitlines() if line.startswith("plan.sim/dfs: ")]
    assert [line.split()[1] for line in lines[:3]] == ["running,", "running,", "complete,"]
    assert len(looks) == 2
    assert last_line(said.out)["complete"] is True


def test_following_a_run_that_has_not_begun_to_run_waits(
    blendrun: Blendrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "run").mkdir()
    lock = take_lock(tmp_path / "run" / LOCK_FILE)
    monkeypatch.setattr(follow.time, "sleep", lambda _: lock.close())
    said = blendrun("report", "run", "--follow")
    assert said.out.startswith("run: running, 0 rows answered")
    assert said.code == 2  # the process has gone and left nothing
    assert "holds no run" in said.err
