"""Real processes with a fake engine: every row once, whatever happens to the ranks."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendrun.data.results import ResultJournal
from blendrun.errors import BackendError, DiskFullError, InputError
from blendrun.launch.coordinator import MOST_RESTARTS
from blendrun.report.status import read_status
from tiny_ranks import check_outputs, no_weights, plan_rows, run_on_ranks, set_faults

__all__ = ["no_weights"]
pytestmark = pytest.mark.usefixtures("no_weights")


def no_process_is_left() -> bool:
    return not multiprocessing.active_children()


def test_each_row_is_answered_once_on_two_ranks(tmp_path: Path):
    plan = plan_rows(tmp_path, 60)
    result = run_on_ranks(plan, 2)
    assert (result.num_rows, result.num_errors) == (60, 0)
    check_outputs(tmp_path / "run", 60)
    assert no_process_is_left()
    assert read_status(tmp_path / "run").state == "complete"
    assert run_on_ranks(plan, 2).was_complete


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_ranks_without_rows_do_not_start(num_rows: int, tmp_path: Path):
    plan = plan_rows(tmp_path, num_rows) if num_rows else plan_rows_set_aside(tmp_path)
    result = run_on_ranks(plan, 4)
    assert result.num_rows == max(num_rows, 1)
    if num_rows:
        check_outputs(tmp_path / "run", num_rows)
    assert no_process_is_left()


def plan_rows_set_aside(folder: Path) -> Path:
    from soak.fake_engine import make_model
    from tiny_jobs import plan_job

    (folder / "model").mkdir()
    rows = [{"prompt_token_ids": [10**6]}]
    return plan_job(folder, rows, make_model(folder / "model"))[0]


def test_windows_are_answered_one_after_the_other_by_the_same_ranks(tmp_path: Path):
    plan = plan_rows(tmp_path, 30, window=10)
    run_on_ranks(plan, 2)
    check_outputs(tmp_path / "run", 30)


def test_a_rank_that_dies_at_each_start_leaves_its_rows_to_the_others(tmp_path: Path):
    plan, notes = plan_rows(tmp_path, 40), []
    set_faults(tmp_path, dies_at_start=[1])
    run_on_ranks(plan, 2, note=notes.append)
    check_outputs(tmp_path / "run", 40)
    assert any("rank 1 ended (exit code 7)" in note for note in notes)


def test_a_rank_that_hangs_is_ended_and_starts_again(tmp_path: Path):
    plan, notes = plan_rows(tmp_path, 60), []
    set_faults(tmp_path, hangs={"1": 3}, step_s=0.1)
    run_on_ranks(plan, 2, note=notes.append, hang_limit_s=0.5)
    check_outputs(tmp_path / "run", 60)
    assert any("rank 1 ended (it hangs): it starts again" in note for note in notes)
    assert no_process_is_left()


def test_a_rank_that_stops_for_a_while_is_not_taken_for_one_that_hangs(tmp_path: Path):
    plan, notes = plan_rows(tmp_path, 60), []
    set_faults(tmp_path, hangs={"1": 3}, step_s=0.1)
    waker = threading.Thread(target=wake_stopped_children, daemon=True)
    waker.start()
    run_on_ranks(plan, 2, note=notes.append, hang_limit_s=30.0)
    check_outputs(tmp_path / "run", 60)
    assert not any("ended" in note for note in notes)


def wake_stopped_children() -> None:
    """Until there are none, after there were some."""
    while not (children := multiprocessing.active_children()):
        time.sleep(0.05)
    while children:
        for child in children:
            with suppress(OSError, TypeError):
                os.kill(child.pid, signal.SIGCONT)
        time.sleep(0.2)
        children = multiprocessing.active_children()


def test_where_all_ranks_die_at_each_start_the_run_fails_and_can_go_on(tmp_path: Path):
    plan, notes = plan_rows(tmp_path, 20), []
    set_faults(tmp_path, dies_at_start=[0, 1])
    with pytest.raises(BackendError, match="died too often"):
        run_on_ranks(plan, 2, note=notes.append)
    deaths = [note for note in notes if "ended (exit code 7)" in note]
    assert len(deaths) == 2 * (MOST_RESTARTS + 1)
    assert no_process_is_left()
    set_faults(tmp_path)
    run_on_ranks(plan, 2)
    check_outputs(tmp_path / "run", 20)


def test_a_request_that_kills_its_rank_becomes_an_error_row_and_its_neighbours_do_not(
    tmp_path: Path,
):
    plan = plan_rows(tmp_path, 24)
    set_faults(tmp_path, killers=[13])
    result = run_on_ranks(plan, 2)
    assert result.num_errors == 1
    check_outputs(tmp_path / "run", 24, errors=[13])
    error = pq.read_table(tmp_path / "run" / "outputs.parquet")["error"][13].as_py()
    assert error.startswith("killed_its_rank: ")


def test_a_full_disk_of_a_rank_stops_the_run_which_goes_on_with_another_number_of_ranks(
    tmp_path: Path,
):
    plan = plan_rows(tmp_path, 60)
    set_faults(tmp_path, full_disk={"1": 2}, step_s=0.1)
    with pytest.raises(DiskFullError, match="no room on the disk"):
        run_on_ranks(plan, 2)
    assert no_process_is_left()
    with ResultJournal(tmp_path / "run") as journal:
        assert 0 < len(journal.finished()) < 60
    set_faults(tmp_path)
    run_on_ranks(plan, 3)
    check_outputs(tmp_path / "run", 60)


def test_a_second_run_on_the_folder_is_refused(tmp_path: Path):
    plan = plan_rows(tmp_path, 200)
    num_threads = threading.active_count()
    refused: list[str] = []

    def try_again(_note: str) -> None:
        if refused:
            return
        with pytest.raises(InputError) as raised:
            run_on_ranks(plan, 2)
        refused.append(raised.value.message)

    run_on_ranks(plan, 2, note=try_again)
    assert "is in use" in refused[0]
    check_outputs(tmp_path / "run", 200)
    assert threading.active_count() == num_threads
