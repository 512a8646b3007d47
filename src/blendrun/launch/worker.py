"""One data-parallel rank: it opens an engine and answers what the coordinator gives it.

The same for every way to start processes. Knows a channel to the coordinator and an engine that is
named in its job, so that the engine is loaded here and nowhere else.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from blendrun.data.results import RankJournal
from blendrun.engine.rank_figures import RankFigures
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BlendrunError, RankLostError
from blendrun.launch.messages import (
    Closed,
    CloseWindow,
    Failed,
    FromRank,
    Gave,
    Give,
    GiveRunning,
    Loaded,
    OpenWindow,
    Running,
    Stop,
    Take,
    ToRank,
)
from blendrun.launch.rank_feed import RankFeed, StoppedError
from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True)
class RankJob:
    """What a rank has to know before it starts. Small, and can be sent to another machine."""

    rank: int
    num_ranks: int
    num_near: int  # ranks that share this one's machine at most, with itself
    plan_path: Path
    run_dir: Path
    settings: ExecuteSettings
    attempt: int
    numbers: range  # of the files that this process may write
    command_begin_s: float  # on the monotonic clock, for the time limit
    engine: str  # `module:function` that takes this job and gives an `Engine`


class Channel(Protocol):
    """To the coordinator. Raises EOFError where it is gone."""

    def send(self, message: FromRank) -> None: ...

    def receive(self) -> ToRank:
        """The next message; waits for it."""

    def has_message(self) -> bool: ...


class Loop(Protocol):
    """A window in work; the methods of `engine.loop.RunLoop`."""

    def run(self) -> None: ...

    def deposit(self, requests: Int32, answers: pa.Table | None) -> None: ...

    def withdraw(self, requests: Int32) -> tuple[Int32, pa.Table]: ...

    def release(self, memory_s: float, room: int) -> tuple[Int32, pa.Table]: ...

    def observe(self, elsewhere: Outputs) -> None: ...

    def figures(self) -> RankFigures: ...


class Engine(Protocol):
    def window(
        self, opened: OpenWindow, requests: Int32, journal: RankJournal, feed: RankFeed
    ) -> tuple[Loop, Running]:
        """A loop over the first `requests` of a window, and what runs there."""


def run_rank(job: RankJob, channel: Channel) -> None:
    """Answer windows until the coordinator says that it is enough, or is gone."""
    try:
        engine = _open(job.engine)(job)
        journal = RankJournal(job.run_dir, job.numbers)
        channel.send(Loaded())
        while True:
            message = channel.receive()
            if isinstance(message, Stop):
                return
            if isinstance(message, OpenWindow):
                _window(message, engine, journal, channel)
                channel.send(Closed())
    except (StoppedError, EOFError, BrokenPipeError):
        return
    except RankLostError as error:  # of its own group: this process ends with it, as in a crash
        print(f"rank {job.rank}: {error.message}", file=sys.stderr)
        sys.exit(1)
    except BlendrunError as error:
        channel.send(Failed(type(error).__name__, error.message, error.hint))


def _window(opened: OpenWindow, engine: Engine, journal: RankJournal, channel: Channel) -> None:
    while not isinstance(message := channel.receive(), Take):
        if isinstance(message, CloseWindow):
            return
        if isinstance(message, Stop):
            raise StoppedError
        if isinstance(message, (Give, GiveRunning)):
            channel.send(Gave(np.zeros(0, np.int32)))
    loop, running = engine.window(opened, message.requests, journal, RankFeed(channel))
    channel.send(running)
    loop.run()


def _open(name: str) -> Callable[[RankJob], Engine]:
    module, _, function = name.partition(":")
    opener: Callable[[RankJob], Engine] = getattr(import_module(module), function)
    return opener
