"""Ranks as processes of this machine, each on its share of the cores.

A rank ends with its parent, however that ends: the system kills it, and it watches a pipe.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from blendrun.launch.child import end_with
from blendrun.launch.messages import FromRank, ToRank
from blendrun.launch.worker import RankJob, run_rank

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from blendrun.launch.launcher import Handle


class LocalLauncher:
    """Starts up to `num_ranks` processes at once."""

    def __init__(self, num_ranks: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._shares = core_shares(cores, num_ranks)
        self._is_shared = len(cores) < num_ranks

    def start(self, job: RankJob) -> "LocalHandle":
        share = self._shares[job.rank]
        return LocalHandle(job, share, 1 if self._is_shared else len(share))

    def wait(self, handles: "Sequence[Handle]", timeout_s: float) -> None:
        local = cast("Sequence[LocalHandle]", handles)
        multiprocessing.connection.wait([x for one in local for x in one.waits_for()], timeout_s)


class LocalHandle:
    def __init__(self, job: RankJob, cores: Sequence[int], threads: int) -> None:
        """A process that stays on these cores, and computes with so many threads."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        lifeline, self._lifeline = context.Pipe(duplex=False)
        self.process: SpawnProcess = context.Process(
            target=_main, args=(job, theirs, lifeline, tuple(cores), threads)
        )
        self._is_open = True
        self.process.start()
        theirs.close()
        lifeline.close()
        # of its own: a process that hangs reads nothing, and a pipe holds little
        self._outbox: SimpleQueue[ToRank | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def send(self, message: ToRank) -> None:
        self._outbox.put(message)

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._pipe.send(message)
        except OSError:
            self._is_open = False

    def receive(self) -> FromRank | None:
        try:
            if self._is_open and self._pipe.poll():
                return cast(FromRank, self._pipe.recv())
        except (OSError, EOFError):
            self._is_open = False
        return None

    def is_alive(self) -> bool:
        return self._is_open and self.process.is_alive()

    def kill(self) -> None:
        self._is_open = False
        self.process.kill()
        self.process.join()
        self._outbox.put(None)
        self._writer.join()
        self._pipe.close()
        self._lifeline.close()

    def ending(self) -> str:
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is None:
            return "its connection broke"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def waits_for(self) -> list[Any]:
        """What tells that it has said something, or has ended."""
        return [self._pipe, self.process.sentinel] if self._is_open else []


def core_shares(cores: Sequence[int], num_ranks: int) -> list[tuple[int, ...]]:
    """Cores of each rank: disjoint where there are enough, else all cores for all."""
    if len(cores) < num_ranks:
        return [tuple(cores)] * num_ranks
    ends = [rank * len(cores) // num_ranks for rank in range(num_ranks + 1)]
    return [tuple(cores[a:b]) for a, b in pairwise(ends)]


class _PipeChannel:
    """A rank's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, message: FromRank) -> None:
        self._pipe.send(message)

    def receive(self) -> ToRank:
        return cast(ToRank, self._pipe.recv())

    def has_message(self) -> bool:
        return self._pipe.poll()


def _main(
    job: RankJob, pipe: Connection, lifeline: Connection, cores: Sequence[int], threads: int
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(lifeline)
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(min(threads, _asked_threads(threads)))
    run_rank(job, _PipeChannel(pipe))


def _asked_threads(default: int) -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else default
