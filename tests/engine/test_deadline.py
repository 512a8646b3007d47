"""No step begins that would not leave time to save. The clock here is a number."""

from types import SimpleNamespace

import pytest

from blendrun.engine import deadline
from blendrun.engine.deadline import Deadline
from blendrun.errors import TimeLimitError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_without_a_limit_it_never_stops(clock: SimpleNamespace):
    clock.now = 1e9
    Deadline(0.0, None).check()


def test_it_stops_with_time_left_to_save(clock: SimpleNamespace):
    limit = Deadline(100.0, 3600.0)
    clock.now = 100 + 3589.9
    limit.check()
    clock.now = 100 + 3590.0
    with pytest.raises(TimeLimitError, match="1 h 00 min") as caught:
        limit.check()
    assert "continues" in caught.value.hint
    assert caught.value.exit_code == 1


def test_of_a_short_limit_only_a_part_is_kept_for_saving(clock: SimpleNamespace):
    limit = Deadline(0.0, 20.0)
    clock.now = 18.9
    limit.check()
    clock.now = 19.1
    with pytest.raises(TimeLimitError):
        limit.check()


def test_a_step_that_would_take_too_long_does_not_begin(clock: SimpleNamespace):
    limit = Deadline(0.0, 1000.0)
    clock.now = 975.0
    limit.check()
    limit.note_step(20.0)
    limit.note_step(1.0)
    with pytest.raises(TimeLimitError):
        limit.check()
    for _ in range(50):
        limit.note_step(1.0)  # the long one was an exception
    limit.check()
