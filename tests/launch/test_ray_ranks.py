"""The Ray launcher on a fake cluster with real ranks; on a real one: `make test-ray`."""

import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_ray
from blendrun.data.manifest import Attempt, Manifest, write_manifest
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError
from blendrun.launch import ray_cluster, ray_ranks
from blendrun.launch.messages import CloseWindow, Failed, Loaded, OpenWindow, Stop, Take
from blendrun.launch.ray_actor import RankActor, check_folders
from blendrun.launch.ray_cluster import Room, check_ray, connect, room_for
from blendrun.launch.ray_ranks import RayLauncher
from blendrun.launch.worker import RankJob
from tiny_ranks import check_outputs, no_weights, plan_rows, run_on_ranks, set_faults

__all__ = ["no_weights"]
STARTED = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> fake_ray.FakeRay:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake_ray.install(monkeypatch, [2, 2])


@pytest.fixture
def job(tmp_path: Path) -> RankJob:
    """Of the second attempt at a run, which is in `tmp_path`."""
    attempts = (Attempt("earlier"), Attempt(STARTED))
    (tmp_path / "run").mkdir()
    (tmp_path / "plan.json").touch()
    manifest = Manifest("blendrun-run", 3, "plan.json", {}, {}, attempts, False)
    write_manifest(tmp_path / "run", manifest)
    plan, run_dir = tmp_path / "plan.json", tmp_path / "run"
    return RankJob(1, 2, 2, plan, run_dir, ExecuteSettings(), 2, range(1, 9), 100.0, "no:engine")


def nodes(*cpus: int, lost: int = 0) -> list[dict[str, Any]]:
    alive = [{"Alive": True, "Resources": {"CPU": float(n)}} for n in cpus]
    return [*alive, {"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {"CPU": lost}}]


@pytest.mark.parametrize(
    ("num_ranks", "cpus", "room"),
    [
        (2, [8, 8], Room(8, 1)),
        (3, [8, 8], Room(4, 2)),
        (3, [8, 2], Room(2, 3)),
        (2, [8, 2], Room(4, 2)),
        (1, [3, 5], Room(5, 1)),
        (3, [1, 1, 1], Room(1, 1)),
    ],
)
def test_ranks_get_as_many_cores_as_let_all_run_at_once(
    num_ranks: int, cpus: list[int], room: Room
):
    assert room_for(num_ranks, nodes(*cpus)) == room


def test_more_ranks_than_cores_of_living_nodes_are_refused():
    with pytest.raises(InputError, match=r"4 ranks need a core each: .* has 3 on 3 nodes"):
        room_for(4, nodes(1, 2, lost=64))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="not installed") as caught:
        check_ray()
    assert caught.value.hint == "pip install 'blendrun[ray]'"


def test_an_address_where_nobody_listens_is_refused_at_once(ray: fake_ray.FakeRay):
    with pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        connect("127.0.0.1:1")
    assert not ray.is_connected


def test_a_connection_leaves_signals_as_they_were(ray: fake_ray.FakeRay):
    before = signal.getsignal(signal.SIGTERM)
    connect(None).shutdown()
    assert not ray.is_connected
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_cluster_that_is_too_small_is_left(ray: fake_ray.FakeRay):
    with pytest.raises(InputError, match="5 ranks need a core each"):
        RayLauncher(5, None, print)
    assert not ray.is_connected


def test_a_node_that_sees_the_run_is_accepted(job: RankJob):
    check_folders(job, STARTED)


@pytest.mark.parametrize("lacks", ["run", "attempt", "plan"])
def test_a_node_that_does_not_see_the_run_refuses_it(lacks: str, job: RankJob):
    if lacks == "run":
        (job.run_dir / "manifest.json").unlink()
    if lacks == "plan":
        job.plan_path.unlink()
    started = "another one's" if lacks == "attempt" else STARTED
    said = RankActor({}).start(job, started, 0.0, 1)
    assert isinstance(said, Failed)
    assert said.kind == "InputError"
    assert ("plan" if lacks == "plan" else "run folder") in said.message
    assert "rank 1" in said.message


class Recorder:
    """Takes the place of a rank's process."""

    def __init__(self, job: RankJob, _cores: object, threads: int) -> None:
        self.job, self.threads, self.heard = job, threads, list[Any]()

    def send(self, message: object) -> None:
        self.heard.append(message)


def test_messages_that_overtake_each_other_reach_the_rank_in_order(
    job: RankJob, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("blendrun.launch.ray_actor.LocalHandle", Recorder)
    actor = RankActor({})
    take = Take(np.array([1], np.int32))
    actor.send(0, take)
    assert actor.start(job, STARTED, 50.0, 3) is None
    rank: Any = actor._rank
    assert (rank.job.command_begin_s, rank.threads) == (150.0, 3)
    actor.send(2, Stop())
    close = CloseWindow()
    actor.send(1, close)
    assert rank.heard == [take, close, Stop()]


def test_moments_are_told_on_the_clock_of_the_other_machine(
    ray: fake_ray.FakeRay, job: RankJob, monkeypatch: pytest.MonkeyPatch
):
    heard = []
    monkeypatch.setattr(RankActor, "clock_s", lambda _: time.monotonic() + 1000)
    monkeypatch.setattr(RankActor, "start", lambda _, *args: heard.append(args))
    monkeypatch.setattr(RankActor, "receive", lambda _: ([Loaded()], ""))
    monkeypatch.setattr(RankActor, "send", lambda _, *args: heard.append(args))
    nothing = np.zeros(0, np.int32)
    with closing(RayLauncher(2, None, print)) as launcher:
        handle = launcher.start(job)
        while not isinstance(handle.receive(), Loaded):
            launcher.wait([handle], 1.0)
        handle.send(OpenWindow(0, nothing, nothing, nothing, 7.0))
        while len(heard) < 2:
            time.sleep(0.01)
        handle.kill()
    assert not ray.is_connected
    assert heard[0][0].num_near == 1
    assert heard[0][2] == pytest.approx(1000, abs=1)
    assert heard[1][1].begin_s == pytest.approx(1007, abs=1)


def test_a_rank_without_room_says_so_and_counts_as_dead_after_a_while(
    ray: fake_ray.FakeRay, job: RankJob, monkeypatch: pytest.MonkeyPatch
):
    ray.has_room, notes = False, list[str]()
    monkeypatch.setattr(ray_ranks, "_TELL_S", 0.0)
    with closing(RayLauncher(2, None, notes.append)) as launcher:
        handle = launcher.start(job)
        assert handle.is_alive()
        assert handle.is_alive()
        assert notes == ["rank 1 waits for a node with 2 free cores"]
        monkeypatch.setattr(ray_ranks, "_ROOM_S", 0.0)
        assert not handle.is_alive()
        assert handle.ending() == "no node had room for it"
        handle.kill()


def test_a_rank_without_room_ends_when_it_is_told_to(ray: fake_ray.FakeRay, job: RankJob):
    ray.has_room = False
    with closing(RayLauncher(2, None, print)) as launcher:
        handle = launcher.start(job)
        handle.send(Stop())
        assert not handle.is_alive()
        handle.kill()


def test_ranks_of_a_killed_coordinator_are_ended_and_those_of_other_runs_are_not(
    ray: fake_ray.FakeRay, job: RankJob, tmp_path: Path
):
    RayLauncher(2, None, print).start(job)
    other = RayLauncher(2, None, print).start(replace(job, run_dir=tmp_path / "other"))
    before = list(ray.actors.values())
    RayLauncher(2, None, print).start(job).kill()
    assert [actor.is_gone for actor in before] == [True, False]
    other.kill()


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("loses", [False, True])
def test_each_row_is_answered_once(loses: bool, ray: fake_ray.FakeRay, tmp_path: Path):
    plan, notes = plan_rows(tmp_path, 60), list[str]()
    set_faults(tmp_path, step_s=0.05)
    done = threading.Event()

    def lose_one() -> None:
        parts = tmp_path / "run" / "parts"
        while not (parts.exists() and any(parts.iterdir())) and not done.is_set():
            time.sleep(0.02)
        next(iter(ray.actors.values())).lose()

    thread = threading.Thread(target=lose_one) if loses else None
    if thread:
        thread.start()
    try:
        with closing(RayLauncher(2, None, notes.append)) as launcher:
            run_on_ranks(plan, 2, launcher, notes.append)
    finally:
        done.set()
        if thread:
            thread.join()
    check_outputs(tmp_path / "run", 60)
    assert any("its node or its actor is gone: The actor died" in note for note in notes) == loses
    assert all(actor.is_gone for actor in ray.actors.values())
    assert not ray.is_connected
