"""When a run has to stop, so that what it has is saved before its time is over."""

import time

from blendrun.errors import TimeLimitError
from blendrun.units import format_seconds

_SAVING_S, _SAVING_FRAC = 10.0, 0.05  # kept for saving; of a short limit only a part
_FORGET = 0.98  # per step: one that was long for once does not count for ever


class Deadline:
    """No step begins that would end, with the time to save, after the limit."""

    def __init__(self, begin_s: float, limit_s: float | None) -> None:
        """`begin_s` on the monotonic clock; None: there is no limit."""
        self.begin_s, self._limit_s = begin_s, limit_s
        self._long_step_s = 0.0
        if limit_s is not None:
            self._stop_at = begin_s + limit_s - min(_SAVING_S, _SAVING_FRAC * limit_s)

    def note_step(self, step_s: float) -> None:
        """A step took so long, and so may the next."""
        self._long_step_s = max(step_s, _FORGET * self._long_step_s)

    def check(self, num_steps: int = 1) -> None:
        """Raises TimeLimitError where no further step may begin.

        `num_steps`: those in flight, and the one that is to begin.
        """
        if self._limit_s is None:
            return
        if time.monotonic() + num_steps * self._long_step_s >= self._stop_at:
            raise TimeLimitError(
                f"stopped at the time limit of {format_seconds(self._limit_s)}",
                "what is finished is saved; the same command continues",
            )
