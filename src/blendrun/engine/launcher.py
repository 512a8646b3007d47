"""Who runs a step: at once, or launched and over some time later."""

from typing import Protocol, TypeVar

from blendrun.engine.step_result import StepResult
from blendrun.schedule.batch import Batch


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
