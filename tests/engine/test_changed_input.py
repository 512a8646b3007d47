"""A run goes on when its input changes: what is still asked for is not computed again."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import read_manifest
from blendrun.data.results import read_steps
from blendrun.data.unfinished import read_unfinished
from blendrun.engine.torch_backend import TorchBackend
from blendrun.errors import BackendError, PlanError
from tiny_jobs import execute, plan_job

TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": TEXT + "sum", "max_tokens": 12},
    {"id": "b", "prompt": "the quick brown", "max_tokens": 20, "temperature": 1.0},
    {"id": "c", "prompt": "the quick brown", "max_tokens": 20, "temperature": 1.0},
    {"id": "d", "prompt": TEXT + "dog", "max_tokens": 10, "temperature": 0.8, "n": 3},
    {"id": "e", "prompt": "42", "max_tokens": 9, "temperature": 0.9, "seed": 5},
    {"id": "f", "prompt": 5},
    {"id": "g", "prompt": TEXT, "max_tokens": 15, "stop": ["e"], "logprobs": 1},
]
ADDED = {"id": "x", "prompt": "jumps over", "max_tokens": 6, "temperature": 1.0}
INPUTS = {
    "shuffled": ([ROWS[i] for i in (3, 6, 0, 2, 5, 1, 4)], []),
    "added": (
        [ADDED, *ROWS, {**ADDED, "id": "y"}, {**ROWS[1], "id": "z"}],
        [("x", 0), ("y", 0), ("z", 0)],
    ),
    "removed": ([ROWS[0], ROWS[3], ROWS[6]], []),
    "changed": (
        [*ROWS[:3], {**ROWS[3], "n": 4}, {**ROWS[4], "top_k": 7}, *ROWS[5:]],
        [("d", 3), ("e", 0)],
    ),
}


def outputs(run_dir: Path) -> list[dict[str, Any]]:
    table = pq.read_table(run_dir / "outputs.parquet")
    return table.drop_columns(["num_cached_tokens", "output_top_logprobs"]).to_pylist()


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[int]]:
    return {(row["id"], row["output_index"]): row["output_token_ids"] for row in rows}


def drawn(run_dir: Path) -> int:
    return sum(read_steps(run_dir)["output_tokens"].to_pylist())


@pytest.fixture(scope="module")
def first(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    plan, _ = plan_job(folder, ROWS, checkpoint)
    execute(plan, folder / "run")
    return folder / "run"


@pytest.mark.parametrize("window", [None, 2], ids=["whole", "windows"])
@pytest.mark.parametrize("name", INPUTS)
def test_a_changed_input_ends_as_if_it_were_run_alone(
    name: str, window: int | None, first: Path, checkpoint: Path, tmp_path: Path
):
    rows, new = INPUTS[name]  # and the answers that nobody has
    plan, _ = plan_job(tmp_path, rows, checkpoint, window=window)
    execute(plan, tmp_path / "alone")
    shutil.copytree(first, tmp_path / "run")
    result = execute(plan, tmp_path / "run")
    expected, made = outputs(tmp_path / "alone"), outputs(tmp_path / "run")
    assert [row["id"] for row in made] == [row["id"] for row in expected]
    for mine, other in zip(made, expected, strict=True):
        mine["output_logprobs"] = pytest.approx(mine["output_logprobs"], abs=1e-4)
        assert mine == other
    fresh = [row for row in made if (row["id"], row["output_index"]) in new]
    assert len(fresh) == len(new)
    computed = drawn(tmp_path / "run") - drawn(first)
    assert computed == sum(row["num_output_tokens"] for row in fresh)
    assert result.num_rows == len(made)
    assert read_manifest(tmp_path / "run").is_complete


def test_the_kth_of_equal_rows_takes_the_kth_answer(first: Path):
    answers = by_key(outputs(first))
    assert answers["b", 0] != answers["c", 0]  # each has draws of its own


def test_removed_rows_come_back_without_being_computed(
    first: Path, checkpoint: Path, tmp_path: Path
):
    shutil.copytree(first, tmp_path / "run")
    for name, rows in [("few", ROWS[:1]), ("all", ROWS)]:
        plan, _ = plan_job(tmp_path / name, rows, checkpoint)
        execute(plan, tmp_path / "run")
    assert outputs(tmp_path / "run") == outputs(first)
    assert drawn(tmp_path / "run") == drawn(first)


def test_other_columns_that_change_are_in_the_outputs(
    first: Path, checkpoint: Path, tmp_path: Path
):
    shutil.copytree(first, tmp_path / "run")
    renamed = [{**row, "id": f"row {row['id']}"} for row in ROWS]
    plan, _ = plan_job(tmp_path, renamed, checkpoint)
    assert not execute(plan, tmp_path / "run").was_complete
    assert by_key(outputs(tmp_path / "run")) == {
        (f"row {name}", index): tokens for (name, index), tokens in by_key(outputs(first)).items()
    }
    assert drawn(tmp_path / "run") == drawn(first)
    assert execute(plan, tmp_path / "run").was_complete


def test_unfinished_answers_go_on_at_their_new_rows(
    first: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, steps, run_dir = TorchBackend.run, iter(range(8)), tmp_path / "run"

    def run(backend: TorchBackend, batch: Any) -> Any:
        if next(steps, None) is None:
            raise BackendError("planted")
        return real(backend, batch)

    plan, _ = plan_job(tmp_path / "one", ROWS, checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "run", run)
        with pytest.raises(BackendError):
            execute(plan, run_dir)
    assert read_unfinished(run_dir).num_rows > 4
    plan, _ = plan_job(tmp_path / "two", [*ROWS[3:], *ROWS[:3]], checkpoint)
    execute(plan, run_dir)
    assert by_key(outputs(run_dir)) == by_key(outputs(first))
    assert drawn(run_dir) == drawn(first)


def test_error_rows_are_finished_unless_asked_for_again(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": "the fox", "max_tokens": 3}, {"prompt": TEXT, "max_tokens": 150}]
    small = {"page_size": 4, "kv_memory": 20 * 4 * 512}
    plan, _ = plan_job(tmp_path / "one", rows, checkpoint)
    assert execute(plan, tmp_path / "run", **small).num_errors == 1
    plan, _ = plan_job(tmp_path / "two", rows[::-1], checkpoint)
    assert execute(plan, tmp_path / "run").num_errors == 1
    assert execute(plan, tmp_path / "run", retry_errors=True).num_errors == 0
    made = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    assert [row["num_output_tokens"] for row in made] == [150, 3]


def test_other_settings_or_weights_are_refused_and_nothing_is_touched(
    first: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(first, tmp_path / "run")
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*.[jp]*"))
    plan, _ = plan_job(tmp_path / "seed", ROWS[1:], checkpoint, seed=4)
    with pytest.raises(PlanError, match="seed was 0, now 4"):
        execute(plan, tmp_path / "run")
    plan, _ = plan_job(tmp_path / "other", ROWS[1:], checkpoint)
    with pytest.raises(PlanError, match="dtype was float32"):
        execute(plan, tmp_path / "run", dtype="bfloat16")
    monkeypatch.setattr(
        "blendrun.data.model_files.ModelFiles.weights_fingerprint", lambda _: "other"
    )
    with pytest.raises(PlanError, match="its weights are others"):
        execute(plan, tmp_path / "run")
    after = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*.[jp]*"))
    assert after == before


def test_draws_do_not_depend_on_where_a_row_stands(checkpoint: Path, tmp_path: Path):
    order = np.random.default_rng(3).permutation(len(ROWS))
    found = []
    for name, rows in [("one", ROWS), ("two", [ADDED, *(ROWS[i] for i in order)])]:
        plan, _ = plan_job(tmp_path / name, rows, checkpoint, seed=3)
        execute(plan, tmp_path / name / "run")
        found.append(by_key(outputs(tmp_path / name / "run")))
    one, two = found
    for key in set(one) - {("b", 0), ("c", 0)}:
        assert one[key] == two[key]
    assert sorted([one["b", 0], one["c", 0]]) == sorted([two["b", 0], two["c", 0]])


def test_a_copied_run_belongs_to_the_plan_that_it_goes_on_with(
    first: Path, checkpoint: Path, tmp_path: Path
):
    shutil.copytree(first, tmp_path / "copy")
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    execute(plan, tmp_path / "copy")
    manifest = read_manifest(tmp_path / "copy")
    assert manifest is not None
    assert manifest.plan == str(plan.resolve())
