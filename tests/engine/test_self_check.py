"""The check of a device's kernels at their first use."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flashinfer_stand_in
from blendrun.engine import self_check
from blendrun.engine.compute import triton_compute
from blendrun.engine.graphs import Capture
from blendrun.engine.kv_dtypes import KV_DTYPES
from blendrun.engine.sampler import PLAIN_TOKENS, TokenKernels, sample
from blendrun.engine.self_check import check_compute
from blendrun.engine.token_check import differing_frac
from blendrun.errors import BackendError
from blendrun.kernels.paged.torch_attention import TorchAttention
from flashinfer_stand_in import ContractError
from tiny_devices import CPU, stand_in_compute
from tiny_graphs import RecordingMaker, recordable
from tiny_models import tiny_config
from tiny_plants import PLANTS

OTHERS = {"plain torch": TorchAttention(CPU)}


def check(
    library: Any = flashinfer_stand_in, dtype: torch.dtype = torch.float32, **how: Any
) -> None:
    kv_dtype = how.get("kv_dtype")
    others = {"plain torch": TorchAttention(CPU, kv_dtype=kv_dtype)}
    compute = stand_in_compute(library, **how)
    check_compute(compute, others, tiny_config(head_dim=64), dtype, kv_dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pod", [False, True], ids=["two launches", "pod"])
def test_right_kernels_pass(dtype: torch.dtype, pod: bool):
    check(dtype=dtype, pod=pod)


def test_our_triton_kernels_pass(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    few = ((1, 49, 2), (1, 40, 2), (3, 37, 1), (1, 17, 0), (9, 20, 0))  # the interpreter is slow
    monkeypatch.setattr(self_check, "_SEQUENCES", few)
    check_compute(triton_compute(CPU, "interpreted"), OTHERS, tiny_config(), torch.float32)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_error_in_an_index_array_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    kv_dtype: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
):
    plant(monkeypatch)
    with pytest.raises((BackendError, ContractError)):
        check(kv_dtype=kv_dtype)


@pytest.mark.parametrize(
    "name", ["rmsnorm", "fused_add_rmsnorm", "silu_and_mul", "append_paged_kv_cache"]
)
def test_a_kernel_that_does_nothing_right_is_found(name: str):
    names = {n: getattr(flashinfer_stand_in, n) for n in flashinfer_stand_in.__all__}

    def wrong(*args: Any, **kwargs: Any) -> Any:
        del kwargs
        return torch.zeros_like(args[0][..., : args[0].shape[-1] // 2])

    with pytest.raises(BackendError, match="self-check of the flashinfer path"):
        check(SimpleNamespace(**names | {name: wrong}))


def test_a_rotation_the_other_way_round_is_found():
    names = {n: getattr(flashinfer_stand_in, n) for n in flashinfer_stand_in.__all__}

    def wrong(rows: Any, q: Any, k: Any, head_dim: int, angles: Any) -> None:
        cos, sin = angles.chunk(2, dim=-1)
        other = torch.cat([cos, -sin], dim=-1)
        flashinfer_stand_in.apply_rope_with_cos_sin_cache_inplace(rows, q, k, head_dim, other)

    with pytest.raises(BackendError, match="plain torch differ"):
        check(SimpleNamespace(**names | {"apply_rope_with_cos_sin_cache_inplace": wrong}))


def test_a_kernel_that_fails_is_a_refusal_with_its_words():
    names = {n: getattr(flashinfer_stand_in, n) for n in flashinfer_stand_in.__all__}

    def failing(*_: Any) -> None:
        raise RuntimeError("no kernel image is available")

    with pytest.raises(BackendError, match="no kernel image"):
        check(SimpleNamespace(**names | {"append_paged_kv_cache": failing}))


def worst(logits: torch.Tensor) -> Any:
    _, finite = PLAIN_TOKENS.argmax(logits)
    return logits.argmin(-1), finite


def blind(logits: torch.Tensor) -> Any:
    best, finite = PLAIN_TOKENS.argmax(logits)
    return best, torch.ones_like(finite)


def next_one(logits: torch.Tensor, _: Any, rows: Any, columns: Any) -> Any:
    """Draws for the position behind."""
    late = replace(columns, position=columns.position + 1)
    return sample(logits, late).token_ids[rows]


def other_rows(logits: torch.Tensor, _: Any, rows: Any, columns: Any) -> Any:
    return sample(logits, columns).token_ids[: len(rows)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "kernels",
    [
        TokenKernels(worst),
        TokenKernels(blind),
        TokenKernels(PLAIN_TOKENS.argmax, next_one),
        TokenKernels(PLAIN_TOKENS.argmax, other_rows),
    ],
    ids=["worst", "blind", "next one", "other rows"],
)
def test_best_tokens_and_draws_that_are_not_those_of_the_cpu_are_found(
    kernels: TokenKernels, dtype: torch.dtype
):
    compute = replace(stand_in_compute(), tokens=kernels)
    with pytest.raises(BackendError, match="best tokens and draws"):
        check_compute(compute, OTHERS, tiny_config(head_dim=64), dtype)


@pytest.mark.parametrize("vocab_size", [100, 384, 50000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_our_best_tokens_and_draws_are_those_of_the_cpu(vocab_size: int, dtype: torch.dtype):
    pytest.importorskip("triton")
    kernels = import_module("blendrun.engine.triton_tokens").TRITON_TOKENS
    assert differing_frac(kernels, vocab_size, dtype, CPU) == 0


class _Once(RecordingMaker):
    """Its graphs do nothing when they are replayed."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> Any:
        return SimpleNamespace(made=work().clone(), replay=lambda: None)


@pytest.mark.parametrize(("maker", "is_right"), [(RecordingMaker, True), (_Once, False)])
def test_decodes_out_of_a_graph_must_be_those_that_are_run(maker: Any, is_right: bool):
    compute = stand_in_compute(recordable())
    compute = replace(compute, capture=Capture(compute.attention, maker()))  # type: ignore[arg-type]
    config = tiny_config(head_dim=64)
    if is_right:
        check_compute(compute, OTHERS, config, torch.float32)
        return
    with pytest.raises(BackendError, match="replayed flashinfer decodes"):
        check_compute(compute, OTHERS, config, torch.float32)
