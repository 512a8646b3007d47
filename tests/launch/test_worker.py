"""What a rank's process does with errors."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError, RankLostError
from blendrun.launch.messages import Failed
from blendrun.launch.worker import RankJob, run_rank


def lose_a_rank(_job: RankJob) -> NoReturn:
    raise RankLostError("its other half is gone")


def refuse(_job: RankJob) -> NoReturn:
    raise InputError("no such model", "name another")


class Said(list[Any]):
    """A channel that keeps what is sent."""

    send = list.append


def run(engine: str) -> Said:
    said = Said()
    job = RankJob(
        1, 2, 2, Path("plan"), Path("run"), ExecuteSettings(), 1, range(1), 0.0,
        f"{__name__}:{engine}",
    )  # fmt: skip
    run_rank(job, said)
    return said


def test_a_rank_whose_group_breaks_ends_as_in_a_crash(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as raised:
        run("lose_a_rank")
    assert raised.value.code == 1
    assert "rank 1: its other half is gone" in capsys.readouterr().err


def test_an_error_that_a_person_can_mend_is_told_to_the_coordinator():
    assert run("refuse") == [Failed("InputError", "no such model", "name another")]
