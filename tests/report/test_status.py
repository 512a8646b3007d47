"""How far a run is, told from its folder alone."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from blendrun.data.answers import answers_table
from blendrun.data.manifest import Attempt, Manifest, write_manifest
from blendrun.data.results import LOCK_FILE, ResultJournal
from blendrun.errors import InputError, PlanError
from blendrun.report.status import read_status


def answers(rows: list[int], error: str | None = None) -> pa.Table:
    n = len(rows)
    return answers_table(
        row=rows,
        output_text=["text"] * n,
        output_token_ids=[[1, 2]] * n,
        finish_reason=["length"] * n,
        num_prompt_tokens=[3] * n,
        num_cached_tokens=[0] * n,
        error=[error] * n,
    )


def steps(attempt: int, finished: int, start_s: float) -> pa.Table:
    return pa.table(
        {
            "attempt": [attempt, attempt],
            "start_s": [start_s, start_s + 1],
            "step_s": [1.0, 1.0],
            "finished": [finished, 0],
            "output_tokens": [30, 10],
        }
    )


def write_run(run_dir: Path, *, is_complete: bool = False) -> ResultJournal:
    """10 answers wanted, 1 row set aside; 5 are there and one failed; attempt 2 made two."""
    journal = ResultJournal(run_dir)
    attempts = (Attempt("2026-01-01T00:00:00+00:00", 1.0), Attempt("2026-01-01T01:00:00+00:00", 3))
    made = Manifest.new(run_dir / "plan.json", {"job_id": "x"}, 10, 1)
    write_manifest(run_dir, dataclasses.replace(made, attempts=attempts, is_complete=is_complete))
    journal.append(answers([0, 1, 2]))
    journal.append_steps(steps(1, 3, 100.0))
    journal.append(answers([3], "needs_more_memory: much"))
    journal.append(answers([4, 5, 5]))
    for start_s in (0.0, 2.0):
        journal.append_steps(steps(2, 1, start_s))
    return journal


def test_a_run_that_goes_on_tells_what_is_left_and_how_fast_it_is(tmp_path: Path):
    with write_run(tmp_path):
        status = read_status(tmp_path)
        assert status.state == "running"
        assert int(status.process) > 0
    assert (status.rows, status.answered_rows, status.error_rows) == (11, 5, 2)
    assert status.rows_left == 4
    assert status.attempts == 2
    assert status.attempt_s > 3600  # since it started
    assert status.rows_per_s == pytest.approx(2 / 4)
    assert status.output_tokens_per_s == pytest.approx(80 / 4)
    assert status.time_left_s == pytest.approx(8)


def test_a_stopped_run_has_no_time_left_to_tell(tmp_path: Path):
    write_run(tmp_path).close()
    status = read_status(tmp_path)
    assert (status.state, status.process, status.time_left_s) == ("stopped", None, None)
    assert status.attempt_s == pytest.approx(3 + 4)  # loading and generation
    assert status.rows_left == 4


def test_a_complete_run_is_complete(tmp_path: Path):
    write_run(tmp_path, is_complete=True).close()
    assert read_status(tmp_path).state == "complete"


def test_a_new_attempt_has_no_speed_yet(tmp_path: Path):
    with write_run(tmp_path):
        attempts = (Attempt("2026-01-01T00:00:00+00:00"),) * 3
        made = Manifest.new(tmp_path / "plan.json", {}, 10, 1)
        write_manifest(tmp_path, dataclasses.replace(made, attempts=attempts))
        status = read_status(tmp_path)
    assert (status.rows_per_s, status.output_tokens_per_s, status.time_left_s) == (None,) * 3


def test_a_run_that_only_just_began_is_running(tmp_path: Path):
    with ResultJournal(tmp_path):
        assert read_status(tmp_path).state == "running"


def test_looking_keeps_no_run_out(tmp_path: Path):
    write_run(tmp_path).close()
    read_status(tmp_path)
    ResultJournal(tmp_path).close()
    before = (tmp_path / LOCK_FILE).stat().st_mtime_ns
    read_status(tmp_path)
    assert (tmp_path / LOCK_FILE).stat().st_mtime_ns == before


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="holds no run"):
        read_status(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_part_is_named(tmp_path: Path):
    write_run(tmp_path).close()
    (tmp_path / "parts" / "part-000002.parquet").write_bytes(b"x" * 50)
    with pytest.raises(PlanError, match="part-000002"):
        read_status(tmp_path)
