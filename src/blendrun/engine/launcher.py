"""Who runs a step: at once, or launched and over some time later; and which of the two it is."""

from typing import Literal, Protocol, TypeVar

from blendrun.engine.step_result import StepResult
from blendrun.errors import InputError
from blendrun.schedule.batch import Batch

ScheduleMode = Literal["auto", "async", "sequential"]


class Backend(Protocol):
    def run(self, batch: Batch) -> StepResult: ...


class InFlight(Protocol):
    """A step that was launched."""

    def is_there(self) -> bool:
        """Whether `result` need not wait."""

    def result(self) -> StepResult: ...


F = TypeVar("F", bound=InFlight)


class Launcher(Protocol[F]):
    def launch(self, batch: Batch, before: F | None) -> F:
        """Begin a step. `before`: the one before it, whose result was not asked for yet."""

    def needs_tokens(self, batch: Batch) -> bool:
        """Whether the step after `batch` can be launched only when its result is there."""


class Landed:
    """A step that was over when it was launched."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def is_there(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._result


class InTurn:
    """A `Launcher` that runs one step after the other."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def launch(self, batch: Batch, before: Landed | None) -> Landed:
        del before
        return Landed(self._backend.run(batch))

    def needs_tokens(self, batch: Batch) -> bool:
        del batch
        return True


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
