"""Simulated runs of small jobs, as `blendrun simulate` leaves them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.engine.simulated_job import SimulateOptions
from blendrun.engine.simulated_plan import plan_cost, simulated_job
from blendrun.engine.simulated_run import write_simulated_run
from blendrun.launch.simulated_ranks import simulate_job
from blendrun.schedule.plan_file import read_plan
from tiny_jobs import SHAPE, plan_job


def job_rows(
    groups: int, each: int, prefix_len: int, own_len: int, output_len: tuple[int, int]
) -> list[dict[str, Any]]:
    """Groups of prompts that begin alike, with outputs between two lengths."""
    random = np.random.default_rng(groups)
    rows = []
    for group in range(groups):
        prefix = [10 + group] * prefix_len
        for i in range(each):
            length = int(random.integers(*output_len))
            own = [10_000 + i, *([7] * (own_len - 1))]
            rows.append(
                {"prompt_token_ids": prefix + own, "max_tokens": 4 * length, "output_len": length}
            )
    return rows


def simulated_run(
    folder: Path,
    rows: list[dict[str, Any]],
    hardware: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Plan and simulate `rows`; `hardware` changes figures of the profile."""
    path, _ = plan_job(folder, rows, SHAPE)
    return simulated_again(path, folder / "run", hardware, **options)


def simulated_again(
    plan: Path, run_dir: Path, hardware: dict[str, Any] | None = None, **options: Any
) -> Path:
    stored = read_plan(plan)
    cost = plan_cost(stored.plan)
    cost = replace(cost, hardware=replace(cost.hardware, **(hardware or {})))
    job = simulated_job(stored)
    write_simulated_run(run_dir, stored, job, simulate_job(job, cost, SimulateOptions(**options)))
    return run_dir


def change_steps(run_dir: Path, **columns: Any) -> None:
    """Replace columns of the step records; each value is a function of the records."""
    (path,) = (run_dir / "steps").iterdir()
    steps = pq.read_table(path)
    for name, change in columns.items():
        values = pa.array(change({n: steps[n].to_numpy() for n in steps.column_names}))
        steps = steps.set_column(steps.column_names.index(name), name, values)
    pq.write_table(steps, path)
