"""Parts of the wall time: they add up, planted causes show as themselves, others can recompute."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import Attempt
from blendrun.engine import attempt
from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.report.gap import LOSSES, PARTS, UNEXPLAINED, Gap, Work, explain
from blendrun.report.priced_steps import price_steps
from blendrun.report.report import make_report, save_report
from tiny_jobs import cost_model, execute, plan_job
from tiny_runs import change_steps, job_rows, simulated_again, simulated_run

SHARED = job_rows(40, 25, 800, 40, (4, 12))  # 40 beginnings of 800 tokens, short answers
LONG = job_rows(1, 300, 10, 200, (100, 400))
MIXED = [*job_rows(20, 50, 100, 400, (10, 60)), *job_rows(3, 15, 10, 50, (600, 1500))]
SLOWER_FRAC = 1e-9  # of the wall time: what sums of floats may be off


def gap_of(run_dir: Path) -> Gap:
    gap = make_report(run_dir).gap
    assert gap is not None
    return gap


def check_sums(gap: Gap) -> None:
    assert tuple(gap.seconds) == PARTS
    assert sum(gap.seconds.values()) == pytest.approx(gap.wall_s, rel=1e-12)


@pytest.fixture(scope="module")
def mixed_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = plan_job(tmp_path_factory.mktemp("mixed"), MIXED, "llama-3.1-8b.toml")
    return path


@pytest.mark.parametrize("policy", ["blend", "dfs", "random"])
@pytest.mark.parametrize(
    ("hardware", "options"),
    [
        ({}, {"kv_memory": 2 * 10**9}),
        ({"overlap_exponent": 1.0, "overlap": False}, {}),
        ({"overlap_exponent": np.inf}, {"dp": 3}),
        ({"shared_reads": True, "overlap_exponent": 2.0}, {"kv_memory": 10**10}),
        ({"weight_floor_exponent": 2.0, "step_overhead_s": 2e-3, "gemm_tile": 128}, {}),
        ({"token_overhead_s": 1e-5, "output_overhead_s": 1e-5}, {"overlaps": False}),
    ],
)
def test_parts_of_a_simulated_run_add_up_and_explain_all(
    mixed_plan: Path, tmp_path: Path, policy: str, hardware: dict[str, Any], options: dict[str, Any]
):
    run = simulated_again(
        mixed_plan, tmp_path / "run", hardware, policy=policy, lengths="exact", **options
    )
    gap = gap_of(run)
    check_sums(gap)
    least = -SLOWER_FRAC * gap.wall_s
    assert abs(gap.seconds[UNEXPLAINED]) <= -least
    for part in LOSSES:
        assert gap.seconds[part] >= least, part
    assert (gap.loss_s >= least).all()


@pytest.mark.parametrize("policy", ["random", "dfs"])
def test_destroyed_sharing_shows_as_lost_sharing(tmp_path: Path, policy: str):
    run = simulated_run(tmp_path, SHARED, policy=policy, kv_memory=2 * 10**9)
    gap, values = gap_of(run), make_report(run).values()
    check_sums(gap)
    if policy == "dfs":  # the control: the same job in an order that keeps sharing
        assert gap.largest != "lost_sharing"
        return
    assert gap.largest == "lost_sharing"
    # a price made by hand: tokens computed twice, at the rate of dense products
    twice = values["prefill_tokens"] - 40 * (800 + 25 * 40)
    least_s = 2 * 6.98e9 * twice / 312e12
    assert least_s < gap.seconds["lost_sharing"] < 1.2 * least_s


def test_a_page_pool_too_small_shows_as_itself(tmp_path: Path):
    run = simulated_run(tmp_path, LONG, policy="dfs", kv_memory=10**9, lengths="exact")
    report = make_report(run)
    assert report.gap is not None
    check_sums(report.gap)
    assert report.gap.largest == "fewest_steps"
    assert report.explained is not None
    assert "--kv-memory" in report.explained.sentence("fewest_steps")
    roomy = simulated_again(tmp_path / "plan.json", tmp_path / "roomy", policy="dfs")
    assert gap_of(roomy).seconds["fewest_steps"] < report.gap.seconds["fewest_steps"] / 4


def test_pages_for_a_few_long_prompts_only_show_as_too_few_pages(tmp_path: Path):
    rows = job_rows(30, 4, 3000, 50, (30, 150))
    options = {"policy": "dfs", "lengths": "exact"}
    run = simulated_run(tmp_path, rows, kv_memory=700 * 2**20, **options)
    report = make_report(run)
    assert report.gap is not None
    check_sums(report.gap)
    assert report.gap.largest == "few_pages"
    assert report.explained is not None
    assert "--kv-memory" in report.explained.sentence("few_pages")
    roomy = gap_of(simulated_again(tmp_path / "plan.json", tmp_path / "roomy", **options))
    assert roomy.seconds["few_pages"] == 0
    # what holds requests back is another limit
    narrow = simulated_again(tmp_path / "plan.json", tmp_path / "narrow", max_seqs=3, **options)
    report = make_report(narrow)
    assert report.gap is not None
    assert report.gap.largest == "small_steps"
    assert report.gap.seconds["few_pages"] == 0
    assert report.explained is not None
    assert report.explained.sentence("small_steps").endswith("raise --max-seqs")


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_lengths_off_by_three_show_as_wrong_estimates(
    mixed_plan: Path, tmp_path: Path, factor: float
):
    options = {"policy": "blend", "lengths": "exact", "kv_memory": 4 * 10**9}
    run = simulated_again(mixed_plan, tmp_path / "off", length_factor=factor, **options)
    known = gap_of(simulated_again(mixed_plan, tmp_path / "known", **options))
    gap = gap_of(run)
    check_sums(gap)
    assert gap.largest == "wrong_lengths"
    assert gap.seconds["wrong_lengths"] == pytest.approx(gap.wall_s - known.wall_s)
    assert known.seconds["wrong_lengths"] == 0


def test_preemptions_for_outputs_expected_too_short_show_as_wrong_estimates(tmp_path: Path):
    rows = job_rows(4, 150, 50, 300, (50, 900))  # long outputs, of which few fit at once
    options = {"policy": "blend", "lengths": "exact", "kv_memory": 10**10}
    run = simulated_run(tmp_path, rows, length_factor=1 / 3, **options)
    known = make_report(simulated_again(tmp_path / "plan.json", tmp_path / "known", **options))
    report = make_report(run)
    assert report.gap is not None
    assert known.gap is not None
    check_sums(report.gap)
    assert report.metrics.preemptions > 10 > known.metrics.preemptions
    assert report.gap.seconds["preemption"] == known.gap.seconds["preemption"]
    assert report.gap.largest == "wrong_lengths" != known.gap.largest
    assert report.explained is not None
    assert "--lengths-from" in report.explained.sentence("wrong_lengths")


def test_a_slow_disk_shows_as_files(mixed_plan: Path, tmp_path: Path):
    run = simulated_again(mixed_plan, tmp_path / "run")
    before = gap_of(run)
    # after every step its results take as long to write as the step took
    change_steps(run, start_s=lambda steps: 2 * steps["start_s"])
    gap = gap_of(run)
    check_sums(gap)
    assert gap.largest == "files"
    assert gap.seconds["files"] == pytest.approx(before.wall_s, rel=0.01)
    assert abs(gap.seconds[UNEXPLAINED]) <= SLOWER_FRAC * gap.wall_s
    explained = make_report(run).explained
    assert explained is not None
    assert explained.facts.between_steps_s == pytest.approx(gap.seconds["files"], rel=1e-6)
    assert explained.sentence("files").endswith("then: a faster disk for the run folder")


def test_beginnings_that_ranks_compute_each_are_no_lack_of_memory(tmp_path: Path):
    run = simulated_run(tmp_path, job_rows(2, 60, 400, 10, (3, 8)), dp=2, policy="arrival")
    explained = make_report(run).explained
    assert explained is not None
    said = explained.sentence("lost_sharing")
    assert "ranks that share no KV" in said
    assert "memory" not in said


def test_a_part_that_costs_nothing_has_no_remedy(tmp_path: Path):
    run = simulated_run(tmp_path, SHARED, policy="dfs")
    explained = make_report(run).explained
    assert explained is not None
    assert explained.facts.gap.part_of_wall("fewest_steps") < 5e-4
    assert explained.sentence("fewest_steps").startswith("next to nothing")


def test_a_slow_rank_shows_as_imbalance_of_ranks(mixed_plan: Path, tmp_path: Path):
    run = simulated_again(mixed_plan, tmp_path / "run", dp=4, kv_memory=4 * 10**9)
    before = gap_of(run)

    def slowed(name: str) -> Any:
        return lambda steps: np.where(steps["rank"] == 2, 3 * steps[name], steps[name])

    change_steps(run, start_s=slowed("start_s"), step_s=slowed("step_s"))
    gap = gap_of(run)
    check_sums(gap)
    assert gap.wall_s > 2 * before.wall_s
    assert gap.largest == "rank_imbalance"


def test_a_rank_that_begins_late_shows_as_imbalance_of_ranks(mixed_plan: Path, tmp_path: Path):
    run = simulated_again(mixed_plan, tmp_path / "run", dp=4, kv_memory=4 * 10**9)
    before = gap_of(run)
    late_s = 2 * before.wall_s
    change_steps(run, start_s=lambda s: s["start_s"] + np.where(s["rank"] == 2, late_s, 0.0))
    gap = gap_of(run)
    check_sums(gap)
    assert gap.largest == "rank_imbalance"
    grown_s = gap.seconds["rank_imbalance"] - before.seconds["rank_imbalance"]
    assert grown_s == pytest.approx(gap.wall_s - before.wall_s)
    assert gap.seconds["files"] == pytest.approx(before.seconds["files"], abs=1e-6)


@pytest.mark.parametrize(("dp", "slow", "speed"), [(2, 1, 0.25), (3, 0, 0.3)])
def test_a_slow_rank_that_hands_work_over_is_told_with_its_pace(
    mixed_plan: Path, tmp_path: Path, dp: int, slow: int, speed: float
):
    run = simulated_again(mixed_plan, tmp_path / "run", dp=dp, rank_speed={slow: speed})
    report = make_report(run)
    gap = report.gap
    assert gap is not None
    check_sums(gap)
    assert gap.largest == "rank_imbalance"
    assert abs(gap.seconds[UNEXPLAINED]) <= SLOWER_FRAC * gap.wall_s
    steps = save_steps(run)
    of_slow = steps["step_s"][steps["rank"] == slow].sum()
    assert gap.seconds["rank_imbalance"] > (1 - speed) * of_slow / dp * (1 - SLOWER_FRAC)
    assert report.explained is not None
    assert f"rank {slow} takes {1 / speed:.1f} times as long" in report.explained.sentence(
        "rank_imbalance"
    )


def test_what_the_profile_does_not_know_is_unexplained(mixed_plan: Path, tmp_path: Path):
    run = simulated_again(mixed_plan, tmp_path / "run")
    before = gap_of(run)
    change_steps(
        run, start_s=lambda steps: 2 * steps["start_s"], step_s=lambda steps: 2 * steps["step_s"]
    )
    gap = gap_of(run)
    check_sums(gap)
    assert gap.seconds[UNEXPLAINED] == pytest.approx(before.wall_s)
    same = [part for part in PARTS if part != UNEXPLAINED]
    assert [gap.seconds[p] for p in same] == pytest.approx([before.seconds[p] for p in same])


def test_an_engine_in_order_shows_the_overlap_that_it_does_not_use(
    mixed_plan: Path, tmp_path: Path
):
    options = {"policy": "blend", "lengths": "exact"}
    run = simulated_again(mixed_plan, tmp_path / "run", overlaps=False, **options)
    gap = gap_of(run)
    steps = save_steps(run)
    expected = (steps["run_s"] - np.maximum(steps["busy_s"], steps["read_s"])).sum()
    assert 0 < gap.seconds["no_overlap"] < expected  # the larger of the two is perfect overlap


def save_steps(run_dir: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(save_report(make_report(run_dir)) / "steps.parquet")
    return {name: table[name].to_numpy() for name in table.column_names}


@pytest.mark.parametrize("dp", [1, 2])
def test_figures_are_those_of_other_formulas_over_the_steps(
    mixed_plan: Path, tmp_path: Path, dp: int
):
    hardware = {"overlap_exponent": 3.0, "step_overhead_s": 1e-3}
    run = simulated_again(
        mixed_plan, tmp_path / "run", hardware, policy="random", kv_memory=3 * 10**9, dp=dp,
        lengths="exact",
    )  # fmt: skip
    steps = save_steps(run)
    saved = pq.read_table(run / "report" / "report.parquet").to_pylist()
    figures = {row["metric"]: row["value"] for row in saved}
    g, k = steps["busy_s"], steps["read_s"]

    def curve(compute: Any, memory: Any) -> Any:
        return np.cbrt(compute**3 + memory**3)

    # the bound from totals, its gradient by differences
    compute, memory = figures["optimum_shared_compute_s"], figures["optimum_memory_s"]
    w = cost_model().weight_read_s
    floored = max(compute, figures["optimum_min_steps"] * w)
    h = 1e-6 * floored
    a = (curve(floored + h, memory) - curve(floored - h, memory)) / (2 * h)
    b = (curve(floored, memory + h) - curve(floored, memory - h)) / (2 * h)
    assert figures["gap_gradient_compute"] == pytest.approx(a, rel=1e-6)
    assert figures["gap_gradient_memory"] == pytest.approx(b, rel=1e-6)
    practical_s = curve(floored, memory) + 1e-3 * figures["optimum_min_steps"]
    told = sum(figures[f"gap_{part}_s"] for part in ("ideal", "interference", "fewest_steps"))
    assert told == pytest.approx(practical_s / dp)
    # what each step loses, and the price of extra work, make up the rest but for waiting
    ends = [(steps["start_s"] + steps["step_s"])[steps["rank"] == rank].max() for rank in range(dp)]
    assert figures["gap_wall_s"] == pytest.approx(max(ends))
    loss_s = steps["step_s"] - a * g - b * k
    assert steps["loss_s"] == pytest.approx(loss_s, abs=1e-8)
    waits_s = max(ends) * dp - sum(ends)
    extra_s = a * (g.sum() - floored) + b * (k.sum() - memory)
    beyond_s = loss_s.sum() + extra_s + waits_s - 1e-3 * figures["optimum_min_steps"]
    losses = sum(figures[f"gap_{part}_s"] for part in LOSSES)
    assert losses == pytest.approx(beyond_s / dp, rel=1e-5)
    middle = steps["phase"] == 0
    imbalance_s = (curve(g, k) - a * g - b * k)[middle].sum() / dp
    assert figures["gap_imbalance_s"] == pytest.approx(imbalance_s, rel=1e-4, abs=1e-8)


def test_a_real_run_is_split_without_a_rest_and_says_what_is_unexplained(
    checkpoint: Path, tmp_path: Path
):
    plan, _ = plan_job(tmp_path, [{"prompt": "the quick brown fox", "max_tokens": 9}], checkpoint)
    execute(plan, tmp_path / "run")
    report = make_report(tmp_path / "run")
    gap, m = report.gap, report.metrics
    assert gap is not None
    check_sums(gap)
    assert gap.wall_s == pytest.approx(m.wall_s)
    assert gap.seconds["loading"] == pytest.approx(m.load_s)
    assert gap.seconds["scheduling"] == pytest.approx(m.schedule_s + m.sample_s)
    assert gap.seconds["files"] == pytest.approx(m.wall_s - m.load_s - m.step_s)
    assert gap.seconds[UNEXPLAINED] != 0


def test_compiling_the_batcher_is_part_of_loading_and_said(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def compiles() -> float:
        time.sleep(1.5)
        return 1.5

    plan, _ = plan_job(tmp_path, [{"prompt": "the quick brown fox", "max_tokens": 9}], checkpoint)
    execute(plan, tmp_path / "before")
    monkeypatch.setattr(attempt, "compile_batcher", compiles)
    execute(plan, tmp_path / "run")
    for name, is_said in (("before", False), ("run", True)):
        explained = make_report(tmp_path / name).explained
        assert explained is not None
        assert ("1.50 s of it compiling the batcher" in explained.sentence("loading")) == is_said
        assert (explained.facts.gap.seconds["loading"] >= 1.5) or not is_said


def test_records_of_an_earlier_version_are_read(mixed_plan: Path, tmp_path: Path):
    run = simulated_again(mixed_plan, tmp_path / "run")
    (path,) = (run / "steps").iterdir()
    pq.write_table(pq.read_table(path).drop_columns(["output_tokens"]), path)
    check_sums(gap_of(run))


def test_ranks_in_a_column_are_ranks_of_one_attempt():
    columns = {name: np.zeros(4) for name in STEP_SCHEMA.names}
    columns |= {"attempt": [1, 1, 1, 1], "rank": [1, 0, 1, 0], "start_s": [5.0, 0.0, 0.0, 2.0]}
    columns |= {"step_s": [3.0, 2.0, 4.0, 1.0], "num_pages": np.ones(4)}
    fields = [*(f for f in STEP_SCHEMA if f.name != "rank"), pa.field("rank", pa.int64())]
    schema = pa.schema(fields)
    table = pa.table({name: columns[name] for name in schema.names}).cast(schema)
    steps = price_steps(table, cost_model(), overlaps=True)
    assert [(lane.attempt, lane.rank, lane.steps) for lane in steps.lanes] == [
        (0, 0, slice(0, 2)),
        (0, 1, slice(2, 4)),
    ]
    gap = explain(steps, Work(0.0, 0.0, 0, 0), cost_model(), [Attempt("", 1.0, 8.0, 11.0)], 2)
    check_sums(gap)
    assert gap.wall_s == 11.0
    assert gap.seconds["loading"] == 1.0
    # waiting, and what the second rank takes longer for steps of the same price
    assert gap.seconds["rank_imbalance"] == pytest.approx((8 - 3) / 2 + (7 - 3) / 2)
    assert gap.seconds["files"] == pytest.approx(2 + (5 - 4) / 2)  # after the end, between steps
    in_steps = ("small_steps", "ramp_up", "tail", UNEXPLAINED)  # the weights are read in each
    assert sum(gap.seconds[part] for part in in_steps) == pytest.approx((3 + 3) / 2)


def test_what_is_unexplained_is_told_by_kind_of_kernel(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": "the quick brown fox", "max_tokens": 9}], checkpoint)
    execute(plan, tmp_path / "run")
    explained = make_report(tmp_path / "run").explained
    assert explained is not None
    facts, m = explained.facts, explained.facts.metrics
    beyond_s = m.attention_s + m.model_s - facts.priced_model_s
    # what the stopwatches of a step leave out is small, and unexplained, too
    rest_s = m.step_s - m.schedule_s - m.sample_s - m.model_s - m.attention_s
    weights_s = facts.cost.weight_read_s
    assert facts.gap.seconds[UNEXPLAINED] == pytest.approx(beyond_s + rest_s, abs=weights_s)
    assert "attention took" in explained.sentence(UNEXPLAINED)
