"""The report's figures, computed again with pandas from `steps.parquet`, as docs/report.md says."""

import numpy as np
import pandas as pd
import pytest

from blendrun.report.report import make_report, save_report
from tiny_jobs import cost_model
from tiny_runs import change_steps, job_rows, simulated_run

ROWS = [*job_rows(20, 50, 100, 400, (10, 60)), *job_rows(3, 15, 10, 50, (600, 1500))]
STEP_OVERHEAD_S = 1e-3
Figures = pd.Series


@pytest.fixture(scope="module", params=[1, 3])
def tables(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pd.DataFrame, Figures]:
    """Steps and figures of a run on one or three ranks that lacks pages and loses sharing.

    On one, scheduling takes a tenth of each step, and as long again passes between steps.
    """
    run_dir = simulated_run(
        tmp_path_factory.mktemp("again"),
        ROWS,
        {"overlap_exponent": 3.0, "step_overhead_s": STEP_OVERHEAD_S},
        policy="random", kv_memory=10**9, lengths="exact", dp=request.param,
    )  # fmt: skip
    if request.param == 1:
        change_steps(
            run_dir,
            schedule_s=lambda steps: 0.1 * steps["step_s"],
            start_s=lambda steps: 1.1 * steps["start_s"],
        )
    folder = save_report(make_report(run_dir))
    steps = pd.read_parquet(folder / "steps.parquet")
    return steps, pd.read_parquet(folder / "report.parquet").set_index("metric")["value"]


def test_sums_and_means(tables: tuple[pd.DataFrame, Figures]):
    steps, told = tables
    seconds = steps["step_s"]
    ends = (steps["start_s"] + seconds).groupby([steps["attempt"], steps["rank"]]).max()
    again = {
        "steps": len(steps),
        "step_s": seconds.sum(),
        "generate_s": ends.groupby("attempt").max().sum() * steps["rank"].nunique(),
        "schedule_s": steps["outside_s"].sum(),
        "prefill_tokens": steps["prefill_tokens"].sum(),
        "computed_prompt_tokens": steps["prefill_tokens"].sum(),
        "decode_tokens": steps["decode_tokens"].sum(),
        "recomputed_tokens": steps["recomputed_tokens"].sum(),
        "predicted_compute_s": steps["work_s"].sum(),
        "predicted_memory_s": steps["read_s"].sum(),
        "running_seconds": (steps["running"] * seconds).sum(),
        "mean_running": np.average(steps["running"], weights=seconds),
        "page_seconds": (steps["pages_used"] * seconds).sum(),
        "capacity_seconds": (steps["num_pages"] * seconds).sum(),
        "mean_page_use_frac": (steps["pages_used"] * seconds).sum()
        / (steps["num_pages"] * seconds).sum(),
    }
    assert told[list(again)].to_dict() == pytest.approx(again)
    assert told["sharing_frac"] == pytest.approx(
        1 - again["prefill_tokens"] / told["prompt_tokens"], rel=1e-9
    )


def test_parts_of_the_wall_time(tables: tuple[pd.DataFrame, Figures]):
    steps, told = tables
    lanes = steps.assign(end_s=steps["start_s"] + steps["step_s"]).groupby("rank")
    num_ranks = lanes.ngroups
    total = steps.drop(columns=["attempt", "rank"]).sum()

    def curve(compute_s: float, memory_s: float) -> float:
        return np.cbrt(compute_s**3 + memory_s**3)

    compute_s, memory_s = told["optimum_shared_compute_s"], told["optimum_memory_s"]
    num_steps = told["optimum_min_steps"]
    floored_s = max(compute_s, num_steps * cost_model().weight_read_s)
    bound_s = curve(floored_s, memory_s)
    a, b = (floored_s / bound_s) ** 2, (memory_s / bound_s) ** 2
    least_s = curve(compute_s, memory_s)
    twice_s = a * min(total["work_s"] - compute_s, total["busy_s"] - floored_s)
    mixed_s = curve(steps["busy_s"], steps["read_s"])
    small_s = a * (total["busy_s"] - floored_s) - twice_s
    uneven_s = (mixed_s - a * steps["busy_s"] - b * steps["read_s"]).sum()
    fixed_s = max(total["fixed_s"] - total["outside_s"], 0)
    in_bound_s = num_steps * STEP_OVERHEAD_S
    between_s = (lanes["end_s"].max() - lanes["start_s"].min() - lanes["step_s"].sum()).sum()
    again = {
        ("ideal",): max(compute_s, memory_s),
        ("interference",): least_s - max(compute_s, memory_s),
        ("fewest_steps",): bound_s - least_s + in_bound_s,
        ("lost_sharing", "preemption"): twice_s,
        ("repeated_reads",): b * (total["read_s"] - memory_s),
        ("few_pages", "small_steps", "imbalance", "ramp_up", "tail"): small_s + uneven_s,
        ("no_overlap",): total["run_s"] - mixed_s.sum(),
        ("fixed_costs",): max(fixed_s - in_bound_s, 0),
        ("scheduling",): total["outside_s"] - max(in_bound_s - fixed_s, 0),
        ("files",): between_s,
        ("communication",): total["collective_s"],
        ("wall",): lanes["end_s"].max().max() * num_ranks,
    }
    for parts, seconds in again.items():
        sum_s = sum(told[f"gap_{part}_s"] for part in parts)
        assert sum_s * num_ranks == pytest.approx(seconds, rel=1e-6, abs=1e-6), parts
    # each of these is there to be got wrong
    assert min(twice_s, small_s, uneven_s) > 1e-3
    by_phase = a * steps["busy_s"] + b * steps["read_s"] + steps["loss_s"]
    assert by_phase.groupby(steps["phase"]).sum().to_dict() == pytest.approx(
        steps.groupby("phase")["step_s"].sum().to_dict()
    )
