"""Ranks as processes of their own: they answer as one, and end with the run, however it ends."""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from blendrun.data.manifest import read_manifest
from blendrun.engine.torch_backend import TorchBackend
from blendrun.errors import BackendError, InputError, RankLostError
from blendrun.launch import tensor_group
from blendrun.launch.tensor_group import load_model
from tiny_children import say_no
from tiny_jobs import execute, plan_job

ROWS = [
    {"prompt": "the quick brown fox", "max_tokens": 30},
    {"prompt": "the quick dog", "max_tokens": 12, "temperature": 0.8},
    {"prompt": "question: what", "max_tokens": 20},
]


def test_a_rank_that_dies_is_an_error_and_the_run_goes_on(checkpoint, tmp_path, monkeypatch):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, tp=2)
    execute(plan, tmp_path / "one", tp=1)
    children, real, steps = set(), TorchBackend.run, iter(range(5))

    def run(backend: TorchBackend, batch: object) -> object:
        children.update(multiprocessing.active_children())
        if next(steps, None) is None:
            for child in children:
                os.kill(child.pid, signal.SIGKILL)
        return real(backend, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "run", run)
        with pytest.raises(BackendError, match="rank 1: killed by signal 9"):
            execute(plan, tmp_path / "run", load_model)
    assert len(children) == 1
    execute(plan, tmp_path / "run", load_model)
    assert not multiprocessing.active_children()
    assert read_manifest(tmp_path / "run").environment["tp"] == 2
    made, expected = (
        pq.read_table(tmp_path / name / "outputs.parquet")["output_token_ids"]
        for name in ("run", "one")
    )
    assert made.equals(expected)


def test_a_rank_that_hangs_is_an_error_after_its_limit(checkpoint, tmp_path, monkeypatch):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, tp=2)
    real, steps = TorchBackend.run, iter(range(2))

    def run(backend: TorchBackend, batch: object) -> object:
        if next(steps, None) is None:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGSTOP)
        return real(backend, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "run", run)
        with pytest.raises(RankLostError, match="one hangs"):
            execute(plan, tmp_path / "run", load_model, hang_limit_s=2.0)
    assert not multiprocessing.active_children()


def test_a_rank_that_cannot_start_says_why(checkpoint, tmp_path, monkeypatch):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, tp=2)
    monkeypatch.setattr(tensor_group, "run_rank", say_no)
    with pytest.raises(BackendError, match="rank 1 failed: no"):
        execute(plan, tmp_path / "run", load_model)
    assert not multiprocessing.active_children()


def test_no_process_starts_for_a_number_that_does_not_divide_the_heads(checkpoint, tmp_path):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    with pytest.raises(InputError, match="among 3 ranks"):
        execute(plan, tmp_path / "run", load_model, tp=3)


_PARENT = """
import multiprocessing, sys, time
from tiny_children import sleep
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=sleep, args=(there,))
    child.start()
    here.recv()
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_rank_ends_when_its_parent_is_killed(is_stopped: bool, tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    paths = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
    )
    with parent:
        child = int(parent.stdout.readline())
        descriptor = os.pidfd_open(child)
        if is_stopped:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
    assert is_over(descriptor)


def is_over(descriptor: int) -> bool:
    """Whether a process ends; waits for it."""
    ready, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    return bool(ready)


def test_no_process_starts_where_gpus_are_too_few(checkpoint, tmp_path, monkeypatch):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(tensor_group, "run_rank", say_no)
    with pytest.raises(InputError, match=r"is 2 ranks, .* torch sees 1 here"):
        execute(plan, tmp_path / "run", load_model, tp=2)
