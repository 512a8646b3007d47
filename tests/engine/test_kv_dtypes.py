"""KV pages in float8: on every path of a GPU the same answers, refused where it cannot be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blendrun.data.manifest import read_manifest
from blendrun.engine import compute
from blendrun.engine.compute import choose_compute
from blendrun.engine.kv_dtypes import KV_DTYPES
from blendrun.engine.self_check import check_compute
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.vllm_checks import check_vllm
from blendrun.errors import InputError, PlanError
from blendrun.kernels.paged.nhd_cache import alloc_kv_cache, in_dtype_of
from blendrun.kernels.paged.torch_attention import TorchAttention
from blendrun.report.bounds import run_cost
from engine.test_device_path import ROWS, answers
from tiny_devices import CPU, OnStandIn, in_plain_torch, in_triton, stand_in_compute
from tiny_jobs import execute, plan_job
from tiny_models import tiny_config

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def plan(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    return plan_job(folder, ROWS, checkpoint, ignore_eos=True)[0]


def test_values_beyond_its_range_become_its_largest_and_no_number_stays_none():
    cache, _ = alloc_kv_cache(1, 1, 1, 1, 1, FP8, CPU)
    given = torch.tensor([0.0, 1.0625, -449.0, 1e30, -torch.inf, torch.nan])
    kept = in_dtype_of(cache, given)
    assert kept.dtype == FP8
    expected = torch.tensor([0.0, 1.0, -448.0, 448.0, -448.0, torch.nan])
    assert torch.equal(kept.float().nan_to_num(7.0), expected.nan_to_num(7.0))
    same, _ = alloc_kv_cache(1, 1, 1, 1, 1, torch.float32, CPU)
    assert in_dtype_of(same, given) is given


@pytest.mark.parametrize("pod", [False, True], ids=["two launches", "pod"])
def test_tokens_are_those_of_plain_torch_on_such_pages(plan: Path, pod: bool, tmp_path: Path):
    how = {"kv_dtype": "fp8_e4m3", "chunk_size": 8 if pod else 32}
    expected = answers(plan, tmp_path / "torch", in_plain_torch, **how)
    assert answers(plan, tmp_path / "stand-in", OnStandIn(), pod=pod, **how) == expected


def test_tokens_do_not_depend_on_what_runs_beside_them(plan: Path, tmp_path: Path):
    how = {"kv_dtype": "fp8_e4m3"}
    expected = answers(plan, tmp_path / "one", OnStandIn(), **how)
    few = {"max_seqs": 3, "kv_memory": 2**14, "chunk_size": 5}
    assert answers(plan, tmp_path / "other", OnStandIn(), **how, **few) == expected


def test_our_triton_kernels_give_the_tokens_of_plain_torch(checkpoint: Path, tmp_path: Path):
    pytest.importorskip("triton")
    rows = [{"prompt": f"fox {i}", "max_tokens": 2} for i in range(2)]  # the interpreter is slow
    plan, _ = plan_job(tmp_path, rows, checkpoint, ignore_eos=True)
    expected = answers(plan, tmp_path / "torch", in_plain_torch, kv_dtype="fp8_e4m3")
    assert answers(plan, tmp_path / "triton", in_triton, kv_dtype="fp8_e4m3") == expected


def test_as_many_more_pages_fit_and_prices_follow(plan: Path, tmp_path: Path):
    made = {}
    for name in KV_DTYPES:
        folder = tmp_path / name
        execute(plan, folder, OnStandIn(), kv_dtype=name, kv_memory=2**15, page_size=4)
        made[name] = read_manifest(folder)
    pages = {name: manifest.environment["kv_pages"] for name, manifest in made.items()}
    assert pages["fp8_e4m3"] == 4 * pages["auto"]  # of float32
    assert made["fp8_e4m3"].environment["kv_bytes"] == made["auto"].environment["kv_bytes"]
    costs = {name: run_cost(manifest) for name, manifest in made.items()}
    assert 2 * costs["fp8_e4m3"].kv_bytes_per_token == costs["auto"].kv_bytes_per_token  # bf16
    assert 2 * costs["fp8_e4m3"].context_s == pytest.approx(costs["auto"].context_s)


def test_a_run_keeps_the_dtype_that_it_has_begun_with(plan: Path, tmp_path: Path):
    execute(plan, tmp_path / "run", OnStandIn(), kv_dtype="fp8_e4m3")
    with pytest.raises(PlanError, match="kv_dtype was fp8_e4m3"):
        execute(plan, tmp_path / "run", OnStandIn())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_right_kernels_pass_the_self_check(architecture: str, dtype: torch.dtype):
    others = {"plain torch": TorchAttention(CPU, kv_dtype=FP8)}
    config = tiny_config(architecture, head_dim=64)
    check_compute(stand_in_compute(kv_dtype=FP8), others, config, dtype, FP8)


def test_attention_over_float8_is_near_attention_over_what_was_written():
    """That pages are read and written with the same scale."""
    config = tiny_config(head_dim=64)
    exact = {"plain torch": TorchAttention(CPU)}
    check_compute(stand_in_compute(kv_dtype=FP8), exact, config, torch.float32, FP8)


def test_the_cpu_engine_has_no_such_pages(plan: Path, tmp_path: Path):
    with pytest.raises(InputError, match="--kv-dtype fp8_e4m3 is for GPUs: the CPU engine keeps"):
        execute(plan, tmp_path / "run", device="cpu", kv_dtype="fp8_e4m3")


def test_vllm_is_not_asked_for_such_pages():
    with pytest.raises(InputError, match="vLLM has nothing like --kv-dtype"):
        check_vllm(ExecuteSettings(engine="vllm", kv_dtype="fp8_e4m3"))


@pytest.mark.parametrize(("capability", "is_taken"), [((8, 0), False), ((8, 9), True)])
def test_triton_needs_a_gpu_that_converts(
    capability: tuple[int, int], is_taken: bool, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(compute, "find_flashinfer", lambda: (None, "it is not there"))

    def chosen(kv_dtype: torch.dtype | None) -> Any:
        return choose_compute("cuda", "auto", 64, torch.bfloat16, False, kv_dtype)

    assert chosen(None).attention.backend == "triton"
    if is_taken:
        assert chosen(FP8).attention.backend == "triton"
        return
    with pytest.raises(InputError, match=r"need compute capability 8\.9, and this GPU has 8\.0"):
        chosen(FP8)


def test_every_float8_is_read_as_it_was_written():
    """All 254 numbers of e4m3."""
    cache, _ = alloc_kv_cache(1, 1, 1, 1, 1, FP8, CPU)
    codes: Tensor = torch.from_numpy(np.arange(256, dtype=np.uint8))
    numbers = codes.view(FP8).float()
    is_number = ~numbers.isnan()
    assert int(is_number.sum()) == 254
    kept = in_dtype_of(cache, numbers[is_number])
    assert torch.equal(kept.view(torch.uint8), codes[is_number])
