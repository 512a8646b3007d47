"""`--hang-limit`: a rank that has work and says nothing is ended, and started again."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from blendrun.cli import ranks
from cli_words import Blendrun
from soak.fake_rank import ENGINE
from tiny_ranks import check_outputs, no_weights, plan_rows, set_faults

__all__ = ["no_weights"]
_TURNS, _TURN_S = 300, 0.2  # far more than the limit, in turns: a pause of this process is one


@pytest.fixture
def wakes_too_late() -> Iterator[None]:
    """Stopped ranks go on after a minute, so that a limit which is not heard of is seen."""
    over = threading.Event()

    def wake() -> None:
        for _ in range(_TURNS):
            if over.wait(_TURN_S):
                return
        for child in multiprocessing.active_children():
            with suppress(OSError, TypeError):
                os.kill(child.pid, signal.SIGCONT)

    waker = threading.Thread(target=wake)
    waker.start()
    yield
    over.set()
    waker.join()


@pytest.mark.usefixtures("no_weights", "wakes_too_late")
def test_a_rank_that_hangs_is_ended_after_the_limit_and_starts_again(
    blendrun: Blendrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(ranks._ENGINES, "native", ENGINE)
    plan = plan_rows(tmp_path, 60)
    set_faults(tmp_path, hangs={"1": 3}, step_s=0.1)
    said = blendrun("execute", plan, "--run-dir", "run", "--dp", "2", "--hang-limit", "1s")
    assert said.code == 0, said.err
    assert (tmp_path / "hung-1").exists()
    assert "rank 1 ended (it hangs): it starts again" in said.err
    check_outputs(tmp_path / "run", 60)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("command", ["execute", "run"])
@pytest.mark.parametrize("limit", ["soon", "0s"])
def test_a_limit_that_is_no_duration_is_refused(
    limit: str, command: str, blendrun: Blendrun, checkpoint: Path
):
    words = ("plan.json",) if command == "execute" else ("rows.jsonl", "--model", checkpoint)
    said = blendrun(command, *words, "--hang-limit", limit)
    assert said.code == 2
    assert f"'{limit}' is not a duration" in said.err
