"""What can go wrong, sorted by who can mend it.

The library raises these; the command line prints `message`, then `hint`, and exits with
`exit_code`: 2 where the person can fix it before anything ran, 1 where the run itself failed.
A failing *request* is not an exception: it is a row in the results (`data.results`).
"""

from typing import ClassVar


class BlendrunError(Exception):
    """Base of all errors that are meant for the person who typed the command."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(BlendrunError):
    """A file, flag, model or setting that cannot be used as given."""

    exit_code = 2


class PlanError(BlendrunError):
    """A plan that does not fit what is on disk, or that this version cannot read."""

    exit_code = 2


class CapacityError(BlendrunError):
    """The machine is too small for what was asked (memory, disk)."""

    exit_code = 2


class DiskFullError(CapacityError):
    """No room for a file; what was written before is whole."""

    exit_code = 1


class TimeLimitError(BlendrunError):
    """The time that a person gave the run is over; results so far are safe on disk."""

    exit_code = 1


class BackendError(BlendrunError):
    """The engine failed while running; results so far are safe on disk."""

    exit_code = 1


class RankLostError(BackendError):
    """A process that the engine needs is gone, or hangs; a new start may go on."""
