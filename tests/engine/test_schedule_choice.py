"""Which schedule runs, and why."""

import pytest

from blendrun.engine.schedule_choice import choose_schedule
from blendrun.errors import InputError


@pytest.mark.parametrize(
    ("mode", "device", "tp", "is_ahead", "reason"),
    [
        ("auto", "cuda", 1, True, "while the device is at work"),
        ("auto", "cpu", 1, False, "one thing at a time"),
        ("async", "cpu", 1, True, "asked for"),
        ("sequential", "cuda", 1, False, "asked for"),
        ("auto", "cuda", 2, False, "told each step"),
        ("sequential", "cuda", 2, False, "told each step"),
    ],
)
def test_a_gpu_gets_its_steps_ahead(mode, device, tp, is_ahead, reason):
    chosen, why = choose_schedule(mode, device, tp)
    assert chosen is is_ahead
    assert reason in why


def test_what_cannot_be_had_is_refused():
    with pytest.raises(InputError, match="tensor-parallel"):
        choose_schedule("async", "cuda", 2)
