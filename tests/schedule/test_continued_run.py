"""What a run folder has in common with a plan, and when it refuses it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blendrun.data.answers import answers_table
from blendrun.data.manifest import Manifest
from blendrun.data.results import ResultJournal
from blendrun.errors import PlanError
from blendrun.schedule.continued_run import Overlap, check_continues, plan_keys
from tiny_jobs import SHAPE, plan_job

ROWS: list[dict[str, Any]] = [{"prompt_token_ids": [i, 2], "max_tokens": 3} for i in range(6)]
SETTINGS = {"model": "m", "seed": 0}


def overlap(
    folder: Path, rows: list[dict[str, Any]], answered: list[int], **settings: Any
) -> Overlap | None:
    """Of `rows` with a run of ROWS."""
    path, plan = plan_job(folder / "first", ROWS, SHAPE)
    manifest = Manifest.new(path, {"job_id": plan.job_id, **SETTINGS})
    run_dir = folder / "run"
    with ResultJournal(run_dir) as journal:
        plan_keys(path, plan).write(run_dir, plan.job_id)
        n = len(answered)
        journal.append(
            answers_table(
                row=np.array(answered, np.int64),
                output_text=[""] * n,
                output_token_ids=[[]] * n,
                finish_reason=["stop"] * n,
                num_prompt_tokens=[2] * n,
                num_cached_tokens=[0] * n,
            )
        )
        path, plan = plan_job(folder / "second", rows, SHAPE)
        identity = {"job_id": plan.job_id, **SETTINGS, **settings}
        return check_continues(journal, manifest, identity, plan_keys(path, plan))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS, None),
        (ROWS[::-1], (3, 0)),
        (ROWS[:2], (2, 0)),
        ([*ROWS, {"prompt_token_ids": [9]}], (3, 1)),
        ([{**ROWS[0], "max_tokens": 4}, *ROWS[1:]], (2, 1)),
        ([{**ROWS[0], "n": 3}, *ROWS[1:]], (3, 1)),
        ([ROWS[0], *ROWS], (3, 1)),
        ([{**row, "id": 3, "output_len": 2} for row in ROWS], None),
    ],
    ids=["same", "shuffled", "fewer", "more", "changed", "answers", "doubled", "other columns"],
)
def test_rows_are_kept_by_what_they_ask_for(
    rows: list[dict[str, Any]], expected: tuple[int, int] | None, tmp_path: Path
):
    assert overlap(tmp_path, rows, [0, 1, 4]) == expected


def test_other_settings_are_refused_by_name(tmp_path: Path):
    with pytest.raises(PlanError, match="its model is another; seed was 0, now 1"):
        overlap(tmp_path, ROWS[:3], [0], model="other", seed=1)


def test_an_input_without_a_row_of_the_run_is_refused_once_it_has_answers(tmp_path: Path):
    rows = [{**row, "temperature": 0.5} for row in ROWS]
    assert overlap(tmp_path / "empty", rows, []) == (0, 6)
    with pytest.raises(PlanError, match="no row of it is in the input"):
        overlap(tmp_path, rows, [0])


def test_windows_have_the_keys_of_the_whole(tmp_path: Path):
    rows = [*ROWS, *ROWS[:4], {"prompt_token_ids": [1], "n": 3}, {"prompt_token_ids": [10**9]}]
    whole, windows = (
        plan_keys(*plan_job(tmp_path / name, rows, SHAPE, window=window))
        for name, window in [("whole", None), ("windows", 3)]
    )
    assert whole.answer.tolist() == windows.answer.tolist()
    assert whole.content.equals(windows.content)


def test_a_plan_whose_requests_are_gone_is_told(tmp_path: Path):
    path, plan = plan_job(tmp_path, ROWS, SHAPE)
    (tmp_path / "plan.data" / "requests.parquet").unlink()
    with pytest.raises(PlanError, match=r"requests\.parquet"):
        plan_keys(path, plan)
