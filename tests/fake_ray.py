"""As much of Ray as the launcher uses, in this process: actors are objects with threads."""

import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayError(Exception):
    """What lost actors answer with."""


class _Method:
    def __init__(self, actor: "FakeActor", name: str, group: str = "") -> None:
        self._actor, self._name, self._group = actor, name, group

    def options(self, concurrency_group: str) -> "_Method":
        return _Method(self._actor, self._name, concurrency_group)

    def remote(self, *args: Any) -> "Future[Any]":
        return self._actor.call(self._name, self._group, args)


class FakeActor:
    def __init__(self, made: Any, has_room: bool) -> None:
        self.object, self._has_room, self.is_gone = made, has_room, False
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._ending = Lock()
        self._open: list[Future[Any]] = []

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)

    def call(self, name: str, group: str, args: Sequence[Any]) -> "Future[Any]":
        answer: Future[Any] = Future()
        self._open.append(answer)
        if self.is_gone:
            answer.set_exception(RayError("The actor died.\nmore"))
        elif self._has_room:
            threads = self._threads.setdefault(group, ThreadPoolExecutor(1))
            threads.submit(self._run, answer, getattr(self.object, name), args)
        return answer

    def _run(self, answer: "Future[Any]", method: Callable[..., Any], args: Sequence[Any]) -> None:
        value = method(*args)
        if not answer.done():
            answer.set_result(value)

    def lose(self) -> None:
        """As when its node is lost: the rank ends, and no answer comes."""
        with self._ending:  # it may be lost and killed at once
            if self.is_gone:
                return
            self.is_gone = True
            for answer in self._open:
                if not answer.done():
                    answer.set_exception(RayError("The actor died.\nmore"))
            self.object.end()
            for threads in self._threads.values():
                threads.shutdown(wait=False)


class FakeRay(ModuleType):
    """The module; `actors` by name, those that are gone, too."""

    def __init__(self, cpus: Sequence[int]) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.cpus, self.has_room, self.is_connected = cpus, True, False
        self.actors: dict[str, FakeActor] = {}
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.util = SimpleNamespace(
            list_named_actors=lambda: [k for k, one in self.actors.items() if not one.is_gone]
        )

    def init(self, *_: object, **__: object) -> None:
        self.is_connected = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray takes it, too

    def shutdown(self) -> None:
        self.is_connected = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": cpus}} for cpus in self.cpus]

    def remote(self, **_: object) -> Callable[[type], Any]:
        def factory(kind: type) -> Any:
            def options(name: str, **_: object) -> Any:
                def make(*args: Any) -> FakeActor:
                    self.actors[name] = FakeActor(kind(*args), self.has_room)
                    return self.actors[name]

                return SimpleNamespace(remote=make)

            return SimpleNamespace(options=options)

        return factory

    def get_actor(self, name: str) -> FakeActor:
        return self.actors[name]

    def wait(
        self, answers: Sequence["Future[Any]"], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list["Future[Any]"], list["Future[Any]"]]:
        assert num_returns == 1
        done, others = wait(answers, timeout, FIRST_COMPLETED)
        return list(done), list(others)

    def get(self, answer: "Future[Any]", timeout: float | None = None) -> Any:
        return answer.result(timeout)

    def kill(self, actor: FakeActor, no_restart: bool) -> None:
        assert no_restart
        actor.lose()


def install(patch: pytest.MonkeyPatch, cpus: Sequence[int]) -> FakeRay:
    """`import ray` gives a cluster with so many cores on each node."""
    ray = FakeRay(cpus)
    groups, strategies = ModuleType("groups"), ModuleType("strategies")
    vars(groups).update(
        placement_group=lambda bundles, strategy: (bundles, strategy),
        remove_placement_group=lambda _: None,
    )
    vars(strategies).update(PlacementGroupSchedulingStrategy=lambda group, bundle: (group, bundle))
    patch.setitem(sys.modules, "ray", ray)
    patch.setitem(sys.modules, "ray.util.placement_group", groups)
    patch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return ray
