"""Tensor-parallel ranks on the GPU path: Gloo between threads, the stand-in on each."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from blendrun.data.manifest import read_manifest
from blendrun.engine import rank_memory
from blendrun.engine.compute import Compute, torch_compute
from blendrun.engine.decoder import Decoder
from blendrun.engine.device_memory import KV_FRAC
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.weights import load_weights
from engine.test_device_memory import FakeMemory
from engine.test_device_path import answers
from tiny_devices import CPU, OnStandIn
from tiny_groups import load_on_threads, on_ranks
from tiny_launches import counting
from tiny_models import tiny_config


@pytest.mark.parametrize(("tp", "pod"), [(2, False), (4, True)])
def test_tokens_are_those_of_one_rank_on_the_cpu(
    job_of_ranks: tuple[Path, list[Any]], tp: int, pod: bool, tmp_path: Path
):
    plan, expected = job_of_ranks
    library, launches = counting()
    load = partial(load_on_threads, compute_of=OnStandIn(library).compute)
    how = {"tp": tp, "pod": pod, "chunk_size": 8 if pod else 32}
    assert answers(plan, tmp_path / "run", load, **how) == expected
    assert launches["cascade"] > 0
    assert (launches["pod"] > 0) == pod
    environment = read_manifest(tmp_path / "run").environment
    assert (environment["tp"], environment["attention"]) == (tp, "flashinfer")


def test_tokens_over_float8_are_those_of_one_rank(
    job_of_ranks: tuple[Path, list[Any]], tmp_path: Path
):
    plan, _ = job_of_ranks
    how = {"kv_dtype": "fp8_e4m3"}
    expected = answers(plan, tmp_path / "one", OnStandIn(), **how)
    load = partial(load_on_threads, compute_of=OnStandIn().compute)
    assert answers(plan, tmp_path / "two", load, tp=2, **how) == expected


def test_plain_torch_gives_the_tokens_of_one_rank(
    job_of_ranks: tuple[Path, list[Any]], tmp_path: Path
):
    plan, expected = job_of_ranks

    def plain(_: ExecuteSettings) -> Compute:
        return torch_compute(CPU, "asked for")

    load = partial(load_on_threads, compute_of=plain)
    assert answers(plan, tmp_path / "run", load, tp=2) == expected


def test_pages_get_what_the_fullest_gpu_leaves_beside_a_step_of_all_ranks(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    config, memory_of = tiny_config(), {0: FakeMemory(1000, 400), 1: FakeMemory(700, 400)}
    on_device = rank_memory.kv_bytes

    def kv_bytes(decoder: Decoder, _: Any, *size: int) -> int:
        return on_device(decoder, memory_of[decoder.group.shard.rank], *size)

    monkeypatch.setattr(rank_memory, "_memory_of", lambda _: "a GPU's")
    monkeypatch.setattr(rank_memory, "kv_bytes", kv_bytes)

    def on_rank(group: Any) -> int | None:
        weights = load_weights(checkpoint, config, torch.float32, shard=group.shard)
        decoder = Decoder(config, weights, group=group)
        if group.shard.rank == 0:
            return rank_memory.least_free_bytes(decoder, chunk_size=24, max_seqs=30)
        rank_memory.answer(decoder, group.hear())
        return None

    assert on_ranks(2, on_rank) == [int(300 * KV_FRAC), None]
    assert all(memory.ran for memory in memory_of.values())
