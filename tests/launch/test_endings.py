"""How a run on several ranks ends when its parent is told to, or dies: nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from blendrun.data.results import PARTS, ResultJournal, files_of
from tiny_ranks import check_outputs, no_weights, plan_rows, run_on_ranks, set_faults

__all__ = ["no_weights"]
pytestmark = pytest.mark.usefixtures("no_weights")
TESTS = Path(__file__).parent.parent
_ENDS_S = 10.0  # what is promised; on a busy machine a process may need as long to be heard


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.02)
    return happened()


@pytest.fixture
def started(tmp_path: Path) -> subprocess.Popen:
    """A run whose ranks have answered something, and are in the middle of a slow step."""
    plan = plan_rows(tmp_path, 120)
    set_faults(tmp_path, step_s=0.2)
    process = subprocess.Popen(
        [sys.executable, "-m", "soak.rank_run", str(plan), str(tmp_path / "run"), "2"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stderr=subprocess.PIPE,
    )
    assert wait_until(lambda: any(files_of(tmp_path / "run", PARTS)), 300), process.poll()
    return process


def finish(folder: Path) -> None:
    """What was saved is not computed again, and the rest is."""
    with ResultJournal(folder / "run") as journal:
        assert 0 < len(journal.finished()) < 120
    set_faults(folder)
    run_on_ranks(folder / "plan.json", 3)
    check_outputs(folder / "run", 120)


def test_an_interrupt_ends_all_ranks_and_what_is_finished_is_saved(
    started: subprocess.Popen, tmp_path: Path
):
    ranks = children(started.pid)
    assert len(ranks) >= 2
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=120) == 130
    started.stderr.close()
    # multiprocessing's own process, which is among them, ends a moment after its parent
    assert wait_until(lambda: not any(map(is_alive, ranks)), 10)
    finish(tmp_path)


def test_ranks_end_with_a_parent_that_is_killed(started: subprocess.Popen, tmp_path: Path):
    ranks = children(started.pid)
    started.kill()
    started.wait(timeout=120)
    started.stderr.close()
    assert wait_until(lambda: not any(map(is_alive, ranks)), _ENDS_S)
    finish(tmp_path)


def test_a_rank_that_is_stopped_for_a_while_only_delays(started: subprocess.Popen, tmp_path: Path):
    ranks = [pid for pid in children(started.pid) if "resource_tracker" not in command(pid)]
    os.kill(ranks[0], signal.SIGSTOP)
    time.sleep(2)
    os.kill(ranks[0], signal.SIGCONT)
    assert started.wait(timeout=300) == 0
    started.stderr.close()
    check_outputs(tmp_path / "run", 120)


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
