"""Whether steps are launched before the tokens of the last are there, or in turn."""

from typing import Literal

from blendrun.errors import InputError

ScheduleMode = Literal["auto", "async", "sequential"]


def choose_schedule(mode: ScheduleMode, device_type: str, tp: int) -> tuple[bool, str]:
    """Whether steps are launched ahead of the tokens before them; and why, in one line.

    Raises:
        InputError: it is asked for and cannot be had.
    """
    if tp > 1:
        if mode == "async":
            raise InputError(
                "--schedule async: tensor-parallel ranks are told each step with its tokens",
                "leave it out",
            )
        return False, "tensor-parallel ranks are told each step with its tokens"
    if mode != "auto":
        return mode == "async", "it was asked for"
    if device_type == "cpu":
        return False, "a CPU does one thing at a time"
    return True, "the CPU prepares a step while the device is at work on the one before"
