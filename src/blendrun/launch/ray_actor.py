"""What a launcher starts on a node of a Ray cluster: it has one rank as a process of its own.

Not in the actor's process, so that what a rank has said before it crashed is heard, and a restart
of the process needs no trust in what it leaves. Knows no Ray.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import wait

from blendrun.data.manifest import read_manifest
from blendrun.errors import BlendrunError, InputError
from blendrun.launch.local import LocalHandle
from blendrun.launch.messages import Failed, FromRank, ToRank
from blendrun.launch.worker import RankJob


class RankActor:
    """Each method is called by the coordinator's machine; `receive` beside the others."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment`: variables of the coordinator's process that this one shall have, too."""
        os.environ.update(environment)
        self._rank: LocalHandle | None = None
        self._early: dict[int, ToRank] = {}
        self._next = 0

    def clock_s(self) -> float:
        """The monotonic clock of this machine."""
        return time.monotonic()

    def start(self, job: RankJob, started: str, ahead_s: float, cores: int) -> Failed | None:
        """Start the rank on so many `cores`; an error where it cannot do its work here.

        `started`: of the attempt, in its manifest. `ahead_s`: how far this machine's monotonic
        clock is ahead of the coordinator's.
        """
        try:
            check_folders(job, started)
        except BlendrunError as error:
            return Failed(type(error).__name__, error.message, error.hint)
        job = replace(job, command_begin_s=job.command_begin_s + ahead_s)
        self._rank = LocalHandle(job, sorted(os.sched_getaffinity(0)), cores)
        return None

    def send(self, number: int, message: ToRank) -> None:
        """`number`: of the messages to this rank, from 0; they may arrive in another order."""
        self._early[number] = message
        while self._rank is not None and self._next in self._early:
            self._rank.send(self._early.pop(self._next))
            self._next += 1

    def receive(self) -> tuple[list[FromRank], str]:
        """What the rank has said since the last call; waits for it. And how it ended, or ""."""
        rank = self._rank
        if rank is None:
            return [], "it was not started"
        if waits_for := rank.waits_for():
            wait(waits_for)
        is_alive = rank.is_alive()  # first: what it says before its end still counts
        said: list[FromRank] = []
        while (message := rank.receive()) is not None:
            said.append(message)
        return said, "" if is_alive else rank.ending()

    def end(self) -> None:
        """End the rank at once."""
        if self._rank is not None:
            self._rank.kill()


def check_folders(job: RankJob, started: str) -> None:
    """Raises InputError where the run's folder or its plan is not what the coordinator sees."""
    manifest = read_manifest(job.run_dir)
    attempts = manifest.attempts if manifest else ()
    here = f"on {os.uname().nodename}, where rank {job.rank} was started"
    hint = "put it on storage that all nodes see under the same path"
    if len(attempts) != job.attempt or attempts[-1].started != started:
        raise InputError(f"the run folder {job.run_dir} is not there {here}", hint)
    if not job.plan_path.exists():
        raise InputError(f"the plan {job.plan_path} is not there {here}", hint)
