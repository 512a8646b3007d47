"""Ranks as actors of a Ray cluster, on whatever nodes have room.

Ray finds the room, carries messages and notices lost nodes; when the coordinator's process dies, it
ends the actors, and they their ranks. Each actor has a placement group of one bundle, which lies on
one node: the tensor-parallel ranks of a group are processes of its first one. A GPU backend would
add its GPUs to the bundle.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from blendrun.data.manifest import read_manifest
from blendrun.launch.messages import FromRank, OpenWindow, Stop, ToRank
from blendrun.launch.ray_actor import RankActor
from blendrun.launch.ray_cluster import connect, room_for
from blendrun.launch.worker import RankJob
from blendrun.units import count_of

if TYPE_CHECKING:
    from blendrun.launch.launcher import Handle

_TELL_S = 15.0  # a rank that has waited so long for room says so, …
_ROOM_S = 600.0  # … and after this long it counts as dead
_ANSWER_S = 10.0  # of an actor that does nothing else
_LISTENING, _LAST = "listening", "last"  # threads of an actor beside its main one
_PASSED_ON = ("GOMP_SPINCOUNT", "BLENDRUN_CPU_KERNELS", "BLENDRUN_CXXFLAGS")


class _Stage(Enum):
    """What the open question to an actor is."""

    PLACED = "placed"
    STARTED = "started"
    SAID = "said"
    ENDED = "ended"  # none


class RayLauncher:
    """Connected until `close`, which leaves the cluster as it was."""

    def __init__(self, num_ranks: int, address: str | None, note: Callable[[str], None]) -> None:
        """`address`: see `connect`; `note` is told when a rank waits for room.

        Raises:
            InputError: Ray is not installed, no cluster is there, or it is too small.
        """
        self._note, self._is_first = note, True
        self._at_end = ExitStack()
        try:
            # Ray prints news of nodes there, whatever it is asked
            self._at_end.enter_context(redirect_stdout(sys.stderr))
            self._ray = connect(address)
            self._at_end.callback(self._ray.shutdown)
            self._room = room_for(num_ranks, self._ray.nodes())
        except BaseException:
            self.close()
            raise

    def start(self, job: RankJob) -> "RayHandle":
        run = sha256(bytes(job.run_dir)).hexdigest()[:16]
        if self._is_first:  # who holds the folder's lock is the only one with ranks on it
            self._end_leftovers(run)
            self._is_first = False
        job = replace(job, num_near=self._room.most_on_a_node)
        name = f"{run}-{job.rank}-{uuid4().hex}"
        return RayHandle(self._ray, name, job, self._room.cores, self._note)

    def wait(self, handles: "Sequence[Handle]", timeout_s: float) -> None:
        answers = [one.answer for one in cast("Sequence[RayHandle]", handles) if one.is_open]
        if len(answers) == len(handles) > 0:
            self._ray.wait(answers, num_returns=1, timeout=timeout_s)
        elif not handles:
            time.sleep(timeout_s)

    def close(self) -> None:
        self._at_end.close()

    def _end_leftovers(self, run: str) -> None:
        """Of a coordinator that was killed: before new ranks write to the same folder."""
        for name in self._ray.util.list_named_actors():
            if name.startswith(f"{run}-"):
                with suppress(ValueError):  # it has ended meanwhile
                    _end(self._ray, self._ray.get_actor(name))


class RayHandle:
    """An actor with a rank: first it waits for room, then its rank starts, then it passes on."""

    def __init__(
        self, ray: Any, name: str, job: RankJob, cores: int, note: Callable[[str], None]
    ) -> None:
        self._ray, self._job, self._cores, self._note = ray, job, cores, note
        self._groups: Any = import_module("ray.util.placement_group")
        strategies: Any = import_module("ray.util.scheduling_strategies")
        self._group = self._groups.placement_group([{"CPU": cores}], strategy="STRICT_PACK")
        passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        actor = ray.remote(
            num_cpus=cores, max_restarts=0, concurrency_groups={_LISTENING: 1, _LAST: 1}
        )(RankActor)
        self._actor = actor.options(
            name=name,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(self._group, 0),
        ).remote(passed_on)
        self._asked_at, self._has_told = time.monotonic(), False
        self._stage, self.answer = _Stage.PLACED, self._actor.clock_s.remote()
        self._is_placed, self._ahead_s = False, 0.0
        self._num_sent = 0
        self._said: deque[FromRank] = deque()
        self._ending = ""

    @property
    def is_open(self) -> bool:
        """Whether `answer` is still to come, or to be read."""
        return self._stage is not _Stage.ENDED

    def send(self, message: ToRank) -> None:
        if self._stage is _Stage.PLACED:
            if isinstance(message, Stop):
                self._end("it never started")
            return
        if isinstance(message, OpenWindow):
            message = replace(message, begin_s=message.begin_s + self._ahead_s)
        if self.is_open:
            self._actor.send.remote(self._num_sent, message)
            self._num_sent += 1

    def receive(self) -> FromRank | None:
        self._hear()
        return self._said.popleft() if self._said else None

    def is_alive(self) -> bool:
        self._hear()
        return self.is_open

    def kill(self) -> None:
        _end(self._ray, self._actor, asks=self._is_placed)
        self._end("it was killed")
        self._groups.remove_placement_group(self._group)

    def ending(self) -> str:
        return self._ending

    def _hear(self) -> None:
        """Take what the actor has answered, and ask it again."""
        if not self.is_open:
            return
        if not self._ray.wait([self.answer], timeout=0)[0]:
            if self._stage is _Stage.PLACED:
                self._wait_for_room()
            return
        try:
            self._go_on(self._ray.get(self.answer))
        except self._ray.exceptions.RayError as error:
            self._end(f"its node or its actor is gone: {str(error).splitlines()[0]}")

    def _go_on(self, answer: Any) -> None:
        if self._stage is _Stage.PLACED:
            self._is_placed = True
            self._ahead_s = self._measure_ahead_s()
            manifest = read_manifest(self._job.run_dir)
            started = manifest.attempts[-1].started if manifest else ""
            self._stage = _Stage.STARTED
            self.answer = self._actor.start.remote(self._job, started, self._ahead_s, self._cores)
            return
        if self._stage is _Stage.STARTED:
            said, ending = ([answer], answer.message) if answer is not None else ([], "")
        else:
            said, ending = answer
        self._said += said
        if ending:
            self._end(ending)
        else:
            self._stage = _Stage.SAID
            self.answer = self._actor.receive.options(concurrency_group=_LISTENING).remote()

    def _measure_ahead_s(self) -> float:
        """How far its monotonic clock is ahead of ours; wrong by half the way there at most."""
        before = time.monotonic()
        there = float(self._ray.get(self._actor.clock_s.remote(), timeout=_ANSWER_S))
        return there - (before + time.monotonic()) / 2

    def _wait_for_room(self) -> None:
        waited_s = time.monotonic() - self._asked_at
        if waited_s > _TELL_S and not self._has_told:
            self._has_told = True
            cores = count_of(self._cores, "free core")
            self._note(f"rank {self._job.rank} waits for a node with {cores}")
        if waited_s > _ROOM_S:
            self._end("no node had room for it")

    def _end(self, how: str) -> None:
        self._stage, self._ending = _Stage.ENDED, self._ending or how


def _end(ray: Any, actor: Any, asks: bool = True) -> None:
    """Ends an actor and, where `asks`, waits until its rank is gone."""
    if asks:
        with suppress(ray.exceptions.RayError):  # it is gone, or its node is
            last = actor.end.options(concurrency_group=_LAST).remote()
            ray.get(last, timeout=_ANSWER_S)
    ray.kill(actor, no_restart=True)
