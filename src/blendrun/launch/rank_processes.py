"""The processes of ranks: started, listened to, ended. Whatever happens, `close` leaves none.

A process is as old as what it has said last: how long it may be silent is for others to say.
"""

import time
from dataclasses import dataclass

from blendrun.engine.attempt import WindowWork
from blendrun.launch.launcher import Handle, Launcher
from blendrun.launch.messages import FromRank, Report, Stop
from blendrun.launch.worker import RankJob

_WAIT_S = 0.5
_STOP_S = 8.0  # for a step to end and results to be saved; then ranks are killed


@dataclass(slots=True)
class RankProcess:
    """A process of a rank, and how far it is."""

    handle: Handle
    numbers: range  # of the files that it may write
    is_loaded: bool = False
    has_window: bool = False
    has_reported: bool = False
    silent_s: float = 0.0  # since it said something, of the time that this process ran, too


class RankProcesses:
    def __init__(self, launcher: Launcher, num_ranks: int, engine: str) -> None:
        """`engine`: see `RankJob`."""
        self._launcher, self.num_ranks, self._engine = launcher, num_ranks, engine
        self._processes: dict[int, RankProcess] = {}
        self._heard_at = time.monotonic()

    def __getitem__(self, rank: int) -> RankProcess | None:
        return self._processes.get(rank)

    def with_window(self) -> set[int]:
        """Ranks that have a window open."""
        return {rank for rank, one in self._processes.items() if one.has_window}

    def start(self, rank: int, work: WindowWork) -> None:
        """Another process for `rank`; one that it had before is gone."""
        numbers = work.journal.reserve()
        job = RankJob(
            rank,
            self.num_ranks,
            self.num_ranks,
            work.plan_path.resolve(),
            work.journal.run_dir.resolve(),
            work.settings,
            work.attempt,
            numbers,
            work.deadline.begin_s,
            self._engine,
        )
        self._processes[rank] = RankProcess(self._launcher.start(job), numbers)

    def heard(self) -> list[tuple[int, FromRank | None]]:
        """What ranks have said, after a while of waiting; None: its process has ended."""
        self._launcher.wait([one.handle for one in self._processes.values()], _WAIT_S)
        now = time.monotonic()
        # this process may have been stopped itself: that is no silence of others
        passed_s, self._heard_at = min(now - self._heard_at, 2 * _WAIT_S), now
        said: list[tuple[int, FromRank | None]] = []
        for rank, one in self._processes.items():
            is_alive = one.handle.is_alive()  # first: what it says before its end still counts
            one.silent_s += passed_s
            while (message := one.handle.receive()) is not None:
                said.append((rank, message))
                one.silent_s = 0.0
                one.has_reported |= isinstance(message, Report)
            if not is_alive:
                said.append((rank, None))
        return said

    def bury(self, rank: int) -> tuple[range, str]:
        """End what is left of a process: numbers of its files, and how it ended before."""
        one = self._processes.pop(rank)
        how = one.handle.ending()
        one.handle.kill()
        return one.numbers, how

    def close(self) -> None:
        """End all processes; those that do not end by themselves in time are killed."""
        for one in self._processes.values():
            one.handle.send(Stop())
        end = time.monotonic() + _STOP_S
        try:
            while time.monotonic() < end and any(
                one.handle.is_alive() for one in self._processes.values()
            ):
                self.heard()
        finally:
            for rank in list(self._processes):
                self.bury(rank)
