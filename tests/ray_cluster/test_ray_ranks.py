"""Runs on a cluster of three Ray nodes: every row once, whatever is lost, and nothing is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import read_manifest
from blendrun.data.results import ResultJournal, read_steps
from ray_cluster.processes import is_alive, ranks_of, ranks_on, wait_until
from tiny_jobs import execute, plan_job
from tiny_ranks import check_outputs, plan_rows, set_faults

TESTS = Path(__file__).parent.parent
NUM_ROWS = 120
_ENDS_S = 10.0  # what is promised
_LONG_S = 300.0
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Start]:
    """Starts a run of the fake job in `tmp_path`."""
    plan = plan_rows(tmp_path, NUM_ROWS)
    started: list[subprocess.Popen[str]] = []

    def start_one(dp: int, step_s: float = 0.1) -> "subprocess.Popen[str]":
        set_faults(tmp_path, step_s=step_s)
        words = [str(plan), str(tmp_path / "run"), str(dp), cluster.address]
        process = subprocess.Popen(
            [sys.executable, "-m", "soak.rank_run", *words],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def wait_for_answers(process: "subprocess.Popen[str]", cluster: Any, folder: Path, dp: int) -> None:
    """Until all ranks are there, and something is answered."""
    parts = folder / "run" / "parts"
    assert wait_until(
        lambda: len(ranks_of(cluster)) == dp and parts.exists() and any(parts.iterdir()), _LONG_S
    ), process.poll()


def finish(process: "subprocess.Popen[str]") -> str:
    """What it has said when it has ended well."""
    printed, said = process.communicate(timeout=_LONG_S)
    assert process.returncode == 0, said
    assert printed == ""
    return said


def kill_node(cluster: Any, process: "subprocess.Popen[str]", folder: Path, dp: int) -> None:
    """One that has a rank, and is not the one that knows all others."""
    wait_for_answers(process, cluster, folder, dp)
    node = next(node for node in cluster.worker_nodes if ranks_on(node))
    ranks = ranks_on(node)
    cluster.remove_node(node, allow_graceful=False)
    assert wait_until(lambda: not any(map(is_alive, ranks)), _ENDS_S)


def test_each_row_is_answered_once_on_three_nodes(cluster: Any, start: Start, tmp_path: Path):
    process = start(3)
    wait_for_answers(process, cluster, tmp_path, 3)
    assert [len(ranks_on(node)) for node in cluster.list_all_nodes()] == [1, 1, 1]
    finish(process)
    check_outputs(tmp_path / "run", NUM_ROWS)
    assert ranks_of(cluster) == []


def test_ranks_go_on_with_the_work_of_a_lost_node(cluster: Any, start: Start, tmp_path: Path):
    process = start(3)
    kill_node(cluster, process, tmp_path, 3)
    said = finish(process)
    assert "its node or its actor is gone" in said
    check_outputs(tmp_path / "run", NUM_ROWS)
    assert ranks_of(cluster) == []


def test_a_rank_starts_again_on_a_node_that_has_room(cluster: Any, start: Start, tmp_path: Path):
    process = start(2, step_s=0.3)
    kill_node(cluster, process, tmp_path, 2)
    assert wait_until(lambda: len(ranks_of(cluster)) == 2, _LONG_S), process.poll()
    finish(process)
    check_outputs(tmp_path / "run", NUM_ROWS)
    assert ranks_of(cluster) == []


def test_ranks_end_with_a_coordinator_that_is_killed_and_the_run_goes_on(
    cluster: Any, start: Start, tmp_path: Path
):
    process = start(3)
    wait_for_answers(process, cluster, tmp_path, 3)
    ranks = ranks_of(cluster)
    process.kill()
    killed_at = time.monotonic()
    assert wait_until(lambda: not any(map(is_alive, ranks)), _ENDS_S)
    print(f"ranks ended {time.monotonic() - killed_at:.2f} s after the coordinator")
    with ResultJournal(tmp_path / "run") as journal:
        assert 0 < len(journal.finished()) < NUM_ROWS
    finish(start(3))
    check_outputs(tmp_path / "run", NUM_ROWS)


def test_an_interrupt_ends_all_ranks_and_what_is_finished_is_saved(
    cluster: Any, start: Start, tmp_path: Path
):
    process = start(3)
    wait_for_answers(process, cluster, tmp_path, 3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=_LONG_S)
    assert process.returncode == 130
    assert wait_until(lambda: not ranks_of(cluster), _ENDS_S)
    with ResultJournal(tmp_path / "run") as journal:
        assert 0 < len(journal.finished()) < NUM_ROWS
    finish(start(2, step_s=0.005))  # the cluster is still there
    check_outputs(tmp_path / "run", NUM_ROWS)


def blendrun(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "blendrun", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=_LONG_S,
        check=False,
    )


def test_answers_of_a_model_are_those_of_one_process(
    cluster: Any, checkpoint: Path, tmp_path: Path
):
    text = "question: what is the sum of 12 and 30? answer: the "
    rows = [{"prompt": f"{text}{i % 4} {i}", "max_tokens": 4 + i % 9} for i in range(12)]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    execute(plan, tmp_path / "alone")
    ray = ["--launcher", "ray", "--ray-address", cluster.address]
    run = ["execute", plan, "--run-dir", tmp_path / "run", "--dtype", "float32"]
    said = blendrun(*run, *ray, "--dp", 2, "--time-limit", "1h")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("outputs: ")
    alone, on_ray = (
        pq.read_table(tmp_path / name / "outputs.parquet")["output_token_ids"].to_pylist()
        for name in ("alone", "run")
    )
    assert on_ray == alone
    manifest = read_manifest(tmp_path / "run")
    assert manifest is not None
    assert manifest.environment["dp"] == 2
    steps = read_steps(tmp_path / "run")
    assert 0 <= min(steps["start_s"].to_pylist()) <= max(steps["start_s"].to_pylist()) < _LONG_S


def test_more_ranks_than_cores_are_refused(cluster: Any, tmp_path: Path):
    plan = plan_rows(tmp_path, 4)
    said = blendrun(
        "execute", plan, "--dp", 4, "--launcher", "ray", "--ray-address", cluster.address
    )
    assert said.returncode == 2
    assert "4 ranks need a core each: the Ray cluster has 3 on 3 nodes" in said.stderr


def test_an_address_without_a_cluster_is_refused(tmp_path: Path, first_cluster: Any):
    del first_cluster  # skips where Ray is not there
    plan = plan_rows(tmp_path, 4)
    said = blendrun("execute", plan, "--launcher", "ray", "--ray-address", "127.0.0.1:1")
    assert said.returncode == 2
    assert "no Ray cluster at 127.0.0.1:1" in said.stderr
