"""How ranks are started and reached: what local processes and actors on other machines share."""

from collections.abc import Sequence
from typing import Protocol

from blendrun.launch.messages import FromRank, ToRank
from blendrun.launch.worker import RankJob


class Handle(Protocol):
    """A rank's process."""

    def send(self, message: ToRank) -> None:
        """What cannot be sent is lost: `is_alive` tells soon enough."""

    def receive(self) -> FromRank | None:
        """The next message; None: there is none now."""

    def is_alive(self) -> bool:
        """Whether it runs and can be reached. What it said before its end can still be received."""

    def kill(self) -> None:
        """End it at once; nothing of it is left when this returns."""

    def ending(self) -> str:
        """How it ended, for people."""


class Launcher(Protocol):
    def start(self, job: RankJob) -> Handle: ...

    def wait(self, handles: Sequence[Handle], timeout_s: float) -> None:
        """Until one of them has something to say or has ended, or the time is over."""
