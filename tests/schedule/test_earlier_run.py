"""Output lengths of an earlier run: by prompt, by subtree, and as a start for the batcher."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blendrun.data.answers import answers_table
from blendrun.data.manifest import Manifest, write_manifest
from blendrun.data.results import ResultJournal
from blendrun.errors import InputError, PlanError
from blendrun.schedule.earlier_run import MOST_SEEN
from blendrun.schedule.plan_file import read_plan
from blendrun.schedule.step.begin import BatchLimits, Steering, new_state
from blendrun.schedule.step.steering import begin
from blendrun.schedule.step_job import batcher_job
from tiny_jobs import SHAPE, cost_model, plan_job
from tiny_steps import PRICES

A, B, C = [1] * 30, [2] * 30, [3] * 30


def row(prefix: list[int], number: int, **more: Any) -> dict[str, Any]:
    return {"prompt_token_ids": [*prefix, 10 + number], "max_tokens": 1000, **more}


def earlier(folder: Path, rows: list[dict[str, Any]], lengths: list[int], **settings: Any) -> Path:
    """The folder of a run of `rows` with answers of these lengths; 0 is an error row."""
    path, plan = plan_job(folder, rows, SHAPE, **settings)
    run_dir = folder / "run"
    with ResultJournal(run_dir) as journal:
        write_manifest(run_dir, Manifest.new(path, {"job_id": plan.job_id}))
        for start in range(0, len(rows), 7):
            part = range(start, min(start + 7, len(rows)))
            answered = [i for i in part if lengths[i] is not None]
            bad = [lengths[i] == 0 for i in answered]
            journal.append(
                answers_table(
                    row=answered,
                    output_text=[None if b else "x" for b in bad],
                    output_token_ids=[[5] * lengths[i] for i in answered],
                    finish_reason=[None if b else "stop" for b in bad],
                    num_prompt_tokens=[31] * len(answered),
                    num_cached_tokens=[0] * len(answered),
                    error=["broken" if b else None for b in bad],
                )
            )
    return run_dir


def planned(folder: Path, rows: list[dict[str, Any]], run_dir: Path, **settings: Any):
    path, plan = plan_job(folder, rows, SHAPE, lengths_from=(str(run_dir),), **settings)
    stored = read_plan(path)
    table = stored.requests.take(np.argsort(stored.requests["request"].to_numpy()))
    pairs = zip(
        table["expected_output_len"].to_pylist(), table["length_from"].to_pylist(), strict=True
    )
    return list(pairs), plan, stored


@pytest.mark.parametrize("settings", [{}, {"window": 11}], ids=["whole", "in windows"])
def test_the_same_prompt_then_the_subtree_then_all_are_asked(tmp_path: Path, settings):
    rows = [row(A, i) for i in range(20)] + [row(B, i) for i in range(20)]
    run_dir = earlier(tmp_path / "old", rows, [40] * 20 + [200] * 20, **settings)
    new = [
        row(A, 3),
        row(A, 3, output_len=7),
        row(A, 500),
        row(B, 501),
        row(C, 1),
        row(B, 2, ignore_eos=True),
        row(B, 502, max_tokens=50),
    ] + [row(prefix, 600 + i) for i in range(9) for prefix in (A, B)]
    found, plan, _ = planned(tmp_path / "new", new, run_dir)
    assert found[:7] == [
        (40, "same prompt"),
        (7, "column"),
        (40, "subtree"),
        (200, "subtree"),
        (120, "subtree"),
        (1000, "max_tokens"),
        (50, "subtree"),
    ]
    assert plan.counts.lengths_from["subtree"] == 4 + 18


def test_error_rows_and_rows_not_yet_answered_tell_nothing(tmp_path: Path):
    run_dir = earlier(tmp_path / "old", [row(A, i) for i in range(4)], [0, 30, None, 0])
    found, _, stored = planned(tmp_path / "new", [row(A, i) for i in range(4)], run_dir)
    assert found == [(30, "subtree"), (30, "same prompt"), (30, "subtree"), (30, "subtree")]
    assert stored.seen["output_len"].to_pylist() == [30]


def test_a_run_without_answers_leaves_the_guess(tmp_path: Path):
    run_dir = earlier(tmp_path / "old", [row(A, 0)], [None])
    found, _, _ = planned(tmp_path / "new", [row(A, 0)], run_dir)
    assert found == [(256, "prior")]


def test_a_job_without_requests_needs_no_lengths(tmp_path: Path):
    run_dir = earlier(tmp_path / "old", [row(A, 0)], [3])
    found, _, stored = planned(tmp_path / "new", [{"prompt_token_ids": []}], run_dir)
    assert found == []
    assert stored.seen.num_rows == 0


def test_no_run_and_a_run_whose_plan_is_gone_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no run"):
        planned(tmp_path / "new", [row(A, 0)], tmp_path / "nothing")
    run_dir = earlier(tmp_path / "old", [row(A, 0)], [3])
    (tmp_path / "old" / "plan.json").unlink()
    with pytest.raises(PlanError, match="cannot read the plan"):
        planned(tmp_path / "new", [row(A, 0)], run_dir)


def test_the_batcher_begins_with_what_was_seen_and_needs_no_sample(tmp_path: Path):
    rows = [row(A, i) for i in range(300)] + [row(B, i) for i in range(300)]
    old = rows[:250] + rows[300:305]
    run_dir = earlier(tmp_path / "old", old, [40 + i % 3 for i in range(250)] + [200] * 5)
    _, _, stored = planned(tmp_path / "new", [row(p, 700 + i) for i in range(300) for p in (A, B)],
                           run_dir)  # fmt: skip
    seen = stored.seen
    assert seen.num_rows == MOST_SEEN + 5
    n = stored.tree.num_requests
    job = batcher_job(
        stored.tree,
        stored.tree.leaf_order,
        np.full(n, 1000, np.int32),
        np.full(n, 256, np.int32),
        np.ones(n, bool),
        cost_model(),
        (seen["request"].to_numpy(), seen["output_len"].to_numpy()),
    )
    how = Steering("two lists", "ratio", learns=True)
    state = begin(new_state(job, BatchLimits(10_000, 16, 512, 64), PRICES, how), job.order)
    strata = state.lengths.strata
    assert sorted(strata["finished"].tolist()) == [5, MOST_SEEN]
    known = int(np.argmax(strata["finished"]))
    assert strata["mean_len"][known] == pytest.approx(41, abs=1.5)
    # requests of the known subtree are not sampled; those of the other are
    sampled = set(state.requests["stratum"][state.lists.sample].tolist())
    assert known not in sampled
    assert sampled
