"""Between two steps of a rank: what the coordinator asks for, and what it is told."""

import time
from typing import TYPE_CHECKING

import numpy as np

from blendrun.launch.messages import (
    Begun,
    CloseWindow,
    Gave,
    Give,
    GiveRunning,
    Learn,
    Report,
    Stop,
    Take,
)
from blendrun.tree.prefix_tree import Int32

if TYPE_CHECKING:
    from blendrun.launch.worker import Channel, Loop

_REPORT_S = 0.25


class StoppedError(Exception):
    """The coordinator wants the rank to end now."""


class RankFeed:
    """The `Feed` of a run loop that is one of several ranks."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._ended: list[Int32] = []
        self._reported_at = -np.inf

    def begins(self, requests: Int32) -> None:
        """Said before they are computed: whoever finds the rank dead knows what ran."""
        self._channel.send(Begun(requests.copy()))

    def saved(self, requests: Int32) -> None:
        self._ended.append(requests)

    def goes_on(self, loop: "Loop", is_dry: bool) -> bool:
        """Raises StoppedError, or EOFError where the coordinator is gone."""
        now = time.monotonic()
        if is_dry or now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            self._report(loop)
        while is_dry or self._channel.has_message():
            message = self._channel.receive()
            if isinstance(message, Stop):
                raise StoppedError
            if isinstance(message, CloseWindow):
                return False
            if isinstance(message, Give):
                self._channel.send(Gave(*loop.withdraw(message.requests)))
            if isinstance(message, GiveRunning):
                self._channel.send(Gave(*loop.release(message.memory_s, message.room)))
            if isinstance(message, Learn):
                loop.observe(message.outputs)
            if isinstance(message, Take):
                loop.deposit(message.requests, message.answers)
                is_dry = False
        return True

    def _report(self, loop: "Loop") -> None:
        ended = np.concatenate([np.zeros(0, np.int32), *self._ended])
        self._ended = []
        self._channel.send(Report(ended, loop.figures()))
