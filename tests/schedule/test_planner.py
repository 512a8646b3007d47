"""Plans from input files to sidecars, without weights and without torch."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendrun.config import resolve
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.errors import CapacityError, InputError, PlanError
from blendrun.schedule.orders import POLICIES
from blendrun.schedule.plan_file import read_plan, window_paths
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.planner import make_plan, plan_again
from blendrun.schedule.settings import PlanSettings
from tiny_jobs import SHAPE, ignore_progress, plan_files, plan_job, write_rows

SHARED = list(range(50, 90))
ROWS = [
    {"id": 0, "prompt_token_ids": [*SHARED, 1], "max_tokens": 3},
    {"id": 1, "prompt_token_ids": [7, 8, 9], "max_tokens": 2000, "output_len": 900},
    {"id": 2, "prompt_token_ids": [*SHARED, 2], "max_tokens": 5},
    {"id": 3},
    {"id": 4, "prompt_token_ids": [*SHARED, 1], "max_tokens": 4000},
    {"id": 5, "prompt_token_ids": [7, 10**9]},
]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_good_row_is_planned_once_and_bad_ones_are_set_aside(policy: str, tmp_path: Path):
    path, plan = plan_job(tmp_path, ROWS, SHAPE, policy=policy)
    stored = read_plan(path)
    assert sorted(stored.requests["row"].to_pylist()) == [0, 1, 2, 4]
    assert sorted(stored.requests["request"].to_pylist()) == [0, 1, 2, 3]
    assert stored.rejected["row"].to_pylist() == [3, 5]
    assert (plan.counts.rows, plan.counts.requests, plan.counts.rejected) == (6, 4, 2)
    assert sum(plan.counts.rejected_by_code.values()) == 2
    assert plan.policy == policy
    for request, row in zip(
        stored.requests["request"].to_pylist(), stored.requests["row"].to_pylist(), strict=True
    ):
        assert stored.store[request].tolist() == ROWS[row]["prompt_token_ids"]


def test_counts_are_those_of_the_rows(tmp_path: Path):
    _, plan = plan_job(tmp_path, ROWS, SHAPE)
    counts = plan.counts
    assert counts.prompt_tokens == 3 * 41 + 3
    assert counts.unique_prompt_tokens == 40 + 1 + 1 + 3
    assert counts.computed_prompt_tokens == counts.unique_prompt_tokens  # memory is plenty
    assert counts.expected_output_tokens == 3 + 900 + 5 + 256
    assert counts.lengths_from == {"max_tokens": 2, "column": 1, "prior": 1}
    assert counts.sharing_possible == pytest.approx(1 - 45 / 126)
    assert counts.sharing_kept == counts.sharing_possible


def test_times_keep_their_order(tmp_path: Path):
    _, plan = plan_job(tmp_path, ROWS, SHAPE)
    times = plan.times
    assert 0 < times.shared_compute_s < times.compute_s
    assert times.density == pytest.approx(times.shared_compute_s / times.memory_s)
    assert times.ideal_s == pytest.approx(max(times.shared_compute_s, times.memory_s))
    assert times.ideal_s <= times.practical_s <= times.predicted_s


def test_the_prediction_reads_the_experts_that_a_step_touches_the_bound_those_of_a_token(
    tmp_path: Path,
):
    rows = [{"prompt_token_ids": [i, 5], "max_tokens": 500, "output_len": 500} for i in range(64)]
    _, plan = plan_job(tmp_path, rows, "qwen3-30b-a3b.toml", output_len_column="output_len")
    shape, hardware = ModelShape.load("qwen3-30b-a3b"), HardwareProfile.load("a100-80gb-sxm")
    cost = CostModel(shape, hardware)
    assert plan.times.practical_s < 500 * float(cost.step_weight_read_s(32))
    assert plan.times.predicted_s > 500 * float(cost.step_weight_read_s(60))


def test_ranks_divide_the_time(tmp_path: Path):
    _, one = plan_job(tmp_path / "one", ROWS, SHAPE)
    _, two = plan_job(tmp_path / "two", ROWS, SHAPE, dp=2)
    assert two.times.ideal_s == pytest.approx(one.times.ideal_s / 2)
    assert two.counts.kv_capacity_tokens == 2 * one.counts.kv_capacity_tokens


def test_job_id_depends_on_what_the_answers_depend_on_and_on_nothing_else(tmp_path: Path):
    def job_id(name: str, rows=ROWS, **settings):
        return plan_job(tmp_path / name, rows, SHAPE, **settings)[1].job_id

    first = job_id("first")
    assert job_id("policy", policy="random", hardware="h200", keep_sharing=0.5) == first
    longer = [{**row, "output_len": 77} for row in ROWS]
    assert job_id("expected", longer) == first
    assert job_id("sampling", temperature=0.5) != first
    assert job_id("seed", seed=3) != first
    assert job_id("stop", stop=["x"]) != first
    assert job_id("limit", limit=5) != first
    assert job_id("rows", ROWS[1:]) != first


def test_settings_are_kept_with_their_origin(tmp_path: Path):
    _, plan = plan_job(tmp_path, ROWS, SHAPE, policy="dfs", stop=["a", "b"])
    assert plan.settings["policy"] == "dfs"
    assert plan.settings["stop"] == ("a", "b")
    assert plan.settings_from["stop"] == "flag"
    assert plan.settings_from["temperature"] == "default"


def test_several_files_are_one_job(tmp_path: Path):
    first = write_rows(tmp_path / "a.jsonl", ROWS[:2])
    second = write_rows(tmp_path / "b.jsonl", ROWS[2:5])
    path, plan = plan_files(tmp_path / "plan.json", [first, second], SHAPE)
    stored = read_plan(path)
    assert [source.path for source in stored.sources] == [str(first), str(second)]
    assert plan.counts.requests == 4
    assert sorted(stored.requests["row"].to_pylist()) == [0, 1, 2, 4]


def test_requests_are_marked_left_where_they_are_denser_than_the_job(tmp_path: Path):
    path, plan = plan_job(tmp_path, ROWS, SHAPE)
    table = read_plan(path).requests
    density, is_left = table["density"].to_numpy(), table["is_left"].to_numpy()
    assert (is_left == (density >= plan.times.density)).all()
    assert 0 < is_left.sum() < len(is_left)


def test_a_job_without_any_good_row_is_a_plan(tmp_path: Path):
    path, plan = plan_job(tmp_path, [{"prompt_token_ids": []}, {"prompt_token_ids": None}], SHAPE)
    stored = read_plan(path)
    assert (plan.counts.requests, plan.counts.rejected) == (0, 2)
    assert stored.requests.num_rows == 0
    assert "there is no request to run" in plan.warnings
    assert plan.times.density is None


SMALL = """
name = "small"
kind = "cuda"
compute_flops = 1e12
memory_bandwidth = 1e11
memory_bytes = 16.3e9
memory_frac = 1.0
"""


def profile(path: Path, overlap_exponent: float) -> str:
    path.write_text(f"{SMALL}overlap_exponent = {overlap_exponent}\n")
    return str(path)


def test_warnings_say_what_a_person_should_know(tmp_path: Path):
    rows = [{"prompt_token_ids": [i, i + 1, i + 2]} for i in range(100, 110)]
    _, plan = plan_job(
        tmp_path, rows, SHAPE, hardware=profile(tmp_path / "small.toml", 1.0), max_tokens=4000
    )
    text = "\n".join(plan.warnings)
    assert "share next to no prefixes" in text
    assert "do not overlap" in text
    assert "output length of 10 requests is a guess" in text


def test_notes_of_rows_are_kept_when_a_plan_is_made_again_or_in_windows(tmp_path: Path):
    rows = [{"prompt_token_ids": [1, 2], "max_tokens": 4, "id": i % 2} for i in range(4)]
    path, plan = plan_job(tmp_path, rows, SHAPE, id_column="id")
    note = "2 rows with an id that an earlier row has, such as '0'"
    assert note in plan.warnings
    again = plan_again(path, resolve(PlanSettings, {}, plan.settings, "test"), ignore_progress)
    assert again.warnings == plan.warnings
    _, windows = plan_job(tmp_path / "w", rows, SHAPE, id_column="id", window=2)
    assert windows.input_notes == (note,)
    assert f"{note} (in 1 window)" in windows.warnings


def test_a_request_larger_than_memory_is_told(tmp_path: Path):
    rows = [{"prompt_token_ids": [1] * 100, "max_tokens": 20_000, "output_len": 15_000}]
    _, plan = plan_job(tmp_path, rows, SHAPE, hardware=profile(tmp_path / "small.toml", 4.0))
    assert plan.counts.kv_capacity_tokens < 15_000
    assert any(
        warning.startswith("1 request with up to ") and warning.endswith("needs_more_memory")
        for warning in plan.warnings
    )


def test_a_model_that_fills_the_memory_is_refused_with_a_way_out(tmp_path: Path):
    with pytest.raises(CapacityError, match="leaves no memory for KV") as caught:
        plan_job(tmp_path, ROWS, "llama-3.1-70b.toml", hardware="rtx-4090")
    assert caught.value.hint is not None


def test_text_without_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(InputError) as caught:
        plan_job(tmp_path, [{"prompt": "hello"}], SHAPE)
    assert "tokenizer" in f"{caught.value.message} {caught.value.hint}"


def test_a_tokenizer_can_be_lent_to_a_shape(checkpoint: Path, tmp_path: Path):
    path, plan = plan_job(tmp_path, [{"prompt": "the quick"}], SHAPE, tokenizer=str(checkpoint))
    assert plan.model.fingerprint == ""
    assert read_plan(path).requests["prompt_len"].to_pylist()[0] > 0


def test_a_tokenizer_beside_a_checkpoint_is_refused(checkpoint: Path, tmp_path: Path):
    with pytest.raises(InputError, match="--tokenizer goes with a model shape"):
        plan_job(tmp_path, ROWS, checkpoint, tokenizer=str(checkpoint))


def test_a_checkpoint_is_named_by_its_absolute_path(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(checkpoint.parent)
    _, plan = plan_job(tmp_path, [{"prompt": "the quick"}], checkpoint.name)
    assert plan.model.spec == str(checkpoint)
    assert plan.model.eos_token_ids == (2,)
    assert plan.model.fingerprint


def test_planning_again_replaces_the_plan_and_its_sidecars(tmp_path: Path):
    plan_job(tmp_path, ROWS, SHAPE)
    path, plan = plan_job(tmp_path, ROWS[:2], SHAPE)
    stored = read_plan(path)
    assert stored.plan.counts.rows == plan.counts.rows == 2
    assert pq.read_table(tmp_path / "plan.data" / "requests.parquet").num_rows == 2


def test_planning_that_is_refused_leaves_the_old_plan(tmp_path: Path):
    path, _ = plan_job(tmp_path, ROWS, SHAPE)
    before = path.read_bytes()
    with pytest.raises(InputError):
        plan_files(path, [tmp_path / "no-such-file.jsonl"], SHAPE)
    assert path.read_bytes() == before
    assert read_plan(path).plan.counts.rows == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.data", "plan.json", "rows.jsonl"]


@pytest.mark.parametrize("window", [None, 4])
def test_a_plan_that_is_not_accepted_leaves_the_old_one(tmp_path: Path, window: int | None):
    path, plan = plan_job(tmp_path, ROWS, SHAPE)
    wanted = {"model": SHAPE, "hardware": "h200", "limit": 5, "window": window}
    settings = resolve(PlanSettings, wanted, {}, "test")
    seen: list[int] = []

    def refuse(new: Plan, folders: Sequence[Path]) -> None:
        assert new.job_id != plan.job_id
        seen.extend(pq.read_metadata(folder / "requests.parquet").num_rows for folder in folders)
        raise PlanError("not wanted")

    with pytest.raises(PlanError, match="not wanted"):
        make_plan([str(tmp_path / "rows.jsonl")], settings, path, ignore_progress, refuse)
    assert seen == ([4] if window is None else [3, 1])
    assert read_plan(path).plan.job_id == plan.job_id


def test_an_output_that_is_an_input_is_refused_and_kept(tmp_path: Path):
    source = write_rows(tmp_path / "rows.jsonl", ROWS)
    before = source.read_bytes()
    with pytest.raises(InputError):
        plan_files(source, [source], SHAPE)
    assert source.exists()
    assert source.read_bytes() == before


def test_a_folder_that_is_not_a_plans_is_not_removed(tmp_path: Path):
    mine = write_rows(tmp_path / "plan.data" / "precious.jsonl", ROWS)
    source = write_rows(tmp_path / "rows.jsonl", ROWS)
    with contextlib.suppress(InputError):
        plan_files(tmp_path / "plan.json", [source], SHAPE)
    assert mine.exists()


NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")

sys.meta_path.insert(0, NoTorch())
sys.argv = ["blendrun", *sys.argv[1:]]
from blendrun.cli.main import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def without_torch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, *map(str, words)], capture_output=True, text=True
    )


def test_planning_and_its_errors_need_no_torch(checkpoint: Path, tmp_path: Path):
    source = write_rows(tmp_path / "rows.jsonl", [{"prompt": "the quick"}, {"prompt": "the fox"}])
    path = tmp_path / "plan.json"
    done = without_torch("plan", source, "-o", path, "--model", checkpoint, "--hardware", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(path.read_bytes())["counts"]["requests"] == 2
    refused = without_torch("execute", path)
    assert refused.returncode == 2
    assert "needs torch" in refused.stderr
    assert "pip install" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_repeated_prompts_are_counted(tmp_path: Path):
    prompts = [[5, 6], [5, 6], [5], [7], [5, 6], [7]]
    _, plan = plan_job(tmp_path, [{"prompt_token_ids": p} for p in prompts], SHAPE)
    assert plan.counts.repeated_prompts == 3


def test_windows_are_plans_of_their_own_and_add_up(tmp_path: Path):
    rows = [{"prompt_token_ids": [i % 3, i, 7], "max_tokens": 40 + i} for i in range(20)]
    rows[4] = {"prompt_token_ids": []}
    path, plan = plan_job(tmp_path, rows, SHAPE, window=8)
    parts = [read_plan(tmp_path / name) for name in plan.windows]
    assert [part.plan.counts.rows for part in parts] == [8, 8, 4]
    assert [part.plan.window for part in parts] == [0, 1, 2]
    assert plan.counts.rows == 20
    assert plan.counts.rejected_by_code == {"empty_prompt": 1}
    row = sorted(r for part in parts for r in part.requests["row"].to_pylist())
    assert row == [i for i in range(20) if i != 4]
    for name in ("compute_s", "predicted_s", "predicted_high_s"):
        total = sum(getattr(part.plan.times, name) for part in parts)
        assert getattr(plan.times, name) == pytest.approx(total)
    assert plan.times.density == pytest.approx(plan.times.shared_compute_s / plan.times.memory_s)
    assert len({part.plan.job_id for part in parts} | {plan.job_id}) == 4
    assert plan_files(path, [tmp_path / "rows.jsonl"], SHAPE, window=8)[1].job_id == plan.job_id
    with pytest.raises(PlanError, match="in 3 windows"):
        read_plan(path)


def test_an_empty_file_in_windows_is_one_empty_window(tmp_path: Path):
    path, plan = plan_job(tmp_path, [], SHAPE, window=8)
    assert (len(plan.windows), plan.counts.rows) == (1, 0)
    assert read_plan(path.parent / plan.windows[0]).requests.num_rows == 0


def test_the_estimate_lies_in_its_range_and_known_lengths_narrow_it(tmp_path: Path):
    rows = [{"prompt_token_ids": [i, 2], "max_tokens": 4000} for i in range(50)]
    _, guessed = plan_job(tmp_path / "a", rows, SHAPE)
    _, known = plan_job(tmp_path / "b", [r | {"output_len": 256} for r in rows], SHAPE)
    for times in (guessed.times, known.times):
        assert times.practical_s <= times.predicted_s
        assert times.predicted_low_s <= times.predicted_s <= times.predicted_high_s
    spread = [t.predicted_high_s / t.predicted_low_s for t in (guessed.times, known.times)]
    assert spread[1] < 1.1 < spread[0]


@pytest.mark.parametrize("settings", [{}, {"window": 30}], ids=["whole", "in windows"])
def test_ranks_are_planned_with_equal_times(tmp_path: Path, settings):
    rows = [{"prompt_token_ids": [i % 5, i % 7, i], "max_tokens": 40 + i % 9} for i in range(70)]
    path, plan = plan_job(tmp_path, rows, SHAPE, dp=3, **settings)
    assert sum(rank.requests for rank in plan.ranks) == 70
    seconds = [rank.predicted_s for rank in plan.ranks]
    assert max(seconds) <= 1.1 * min(seconds)
    tables = [read_plan(p).requests for p in window_paths(path, plan)]
    ranks = [rank for table in tables for rank in table["rank"].to_pylist()]
    assert [ranks.count(i) for i in range(3)] == [rank.requests for rank in plan.ranks]


def test_more_ranks_than_requests_leave_some_empty(tmp_path: Path):
    _, plan = plan_job(tmp_path, [{"prompt_token_ids": [1, i]} for i in range(2)], SHAPE, dp=5)
    assert sorted(rank.requests for rank in plan.ranks) == [0, 0, 0, 1, 1]
    alone = plan_job(tmp_path, [{"prompt_token_ids": [1, i]} for i in range(2)], SHAPE)[1]
    assert alone.ranks == ()
    assert plan.times.predicted_s >= alone.times.predicted_s / 2.1


@pytest.mark.parametrize("name", ["window", "workers", "dp", "limit"])
def test_counts_below_one_are_refused(name: str, tmp_path: Path):
    with pytest.raises(InputError, match=f"{name} must be at least 1"):
        plan_job(tmp_path, [{"prompt_token_ids": [1]}], SHAPE, **{name: 0})
