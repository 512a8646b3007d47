"""Fused elementwise kernels, C++ and plain torch, against float64 arithmetic."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.kernels.cpu import build, library
from blendrun.kernels.cpu.argmax import argmax
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.rms_norm import add_rms_norm
from blendrun.kernels.cpu.rotary import RotaryWrites, rotate_and_write
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.silu_mul import silu_mul

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCE)
EPS = 1e-3


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module", params=["cpp", "cpp, AVX2", "cpp, 128-bit", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs in C++, for each width of vectors that this machine has, and in torch."""
    kind = str(request.param)
    target = {"cpp, AVX2": "-march=x86-64-v3", "cpp, 128-bit": "-march=x86-64"}.get(kind)
    if target is not None and "avx2" not in build._cpu_features():
        pytest.skip("needs an x86-64 CPU with AVX2")
    library.library.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.BACKEND_VARIABLE, kind.split(",")[0])
        if target is not None:
            patch.setattr(build, "EXTRA_FLAGS", (("-fopenmp", target),))
        for noun, reason in library.load_all().items():
            if kind != "torch" and library.library(noun).library is None:
                pytest.skip(reason)
        yield kind
    library.library.cache_clear()


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    """Each row within the tolerance of its norm."""
    error = (actual.double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-30)
    assert error.max().item() < TOLERANCE[actual.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 17, 64, 576, 1003])
@pytest.mark.parametrize("num_rows", [0, 1, 20])
def test_norm_of_the_residual_stream(dtype: torch.dtype, width: int, num_rows: int) -> None:
    hidden, branch = (torch.randn(2, num_rows, width) * 3).to(dtype)
    weight = torch.randn(width).to(dtype)
    before = hidden.clone()
    alone = add_rms_norm(hidden, None, weight, EPS)
    assert torch.equal(hidden, before)
    both = add_rms_norm(hidden, branch, weight, EPS)
    assert torch.equal(hidden, before + branch)
    for actual, of in ((alone, before), (both, hidden)):
        exact = of.double()
        scale = (exact.square().mean(-1, keepdim=True) + EPS).rsqrt()
        assert actual.dtype == dtype
        assert actual.shape == hidden.shape
        if num_rows:
            _assert_close(actual, exact * scale * weight.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 16, 33, 96, 1537])
def test_silu_of_gate_times_up(dtype: torch.dtype, width: int) -> None:
    gate_up = (torch.randn(19, 2 * width) * 5).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    actual = silu_mul(gate_up)
    error = (actual.double() - F.silu(gate) * up).abs()
    bound = TOLERANCE[dtype] * (F.silu(gate) * up).abs() + 1e-30
    assert bool((error <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_of_extremes_is_finite(dtype: torch.dtype) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e30])
    actual = silu_mul(torch.cat([gate, torch.ones(8)])[None].to(dtype))[0].float()
    torch.testing.assert_close(actual, F.silu(gate), rtol=1e-2, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 8, 16, 32])
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("with_norm", [False, True])
def test_rotated_keys_and_values_lie_in_their_slots(
    dtype: torch.dtype, page_size: int, head_dim: int, with_norm: bool
) -> None:
    num_tokens, num_q_heads, num_kv_heads = 23, 6, 2
    fused = torch.randn(num_tokens, num_q_heads + 2 * num_kv_heads, head_dim).to(dtype)
    q, k, v = fused.split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    before = fused.clone()
    norms = torch.randn(2, head_dim).to(dtype) if with_norm else (None, None)
    angles = torch.randn(num_tokens, head_dim // 2) * 100
    rotation = Rotation(angles.cos(), angles.sin(), norms[0], norms[1], EPS)
    attention = CpuAttention()
    caches = attention.alloc_kv_cache(1, 64 // page_size, page_size, num_kv_heads, head_dim, dtype)
    k_cache, v_cache = caches[0][0].fill_(7.0), caches[1][0].fill_(7.0)
    slots = torch.randperm(64)
    written, rest = slots[:30], slots[30:]
    token_idx = torch.cat([torch.arange(num_tokens), torch.randint(0, num_tokens, (7,))]).int()
    rotate_and_write(q, k, v, rotation, k_cache, v_cache, token_idx, written)
    assert torch.equal(fused[:, num_q_heads:], before[:, num_q_heads:])
    expected_q, expected_k = (
        _rotated(x, rotation, norm)
        for x, norm in zip(before.split([num_q_heads, 2 * num_kv_heads], dim=1), norms, strict=True)
    )
    k_read, v_read = attention.read_kv(k_cache, v_cache, written)
    rows = token_idx.long()
    _assert_close(q, expected_q)
    _assert_close(k_read, expected_k[rows, :num_kv_heads])
    assert torch.equal(v_read, v[rows])
    assert all(bool((x == 7).all()) for x in attention.read_kv(k_cache, v_cache, rest))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_norm", [False, True])
def test_every_layer_of_a_step_is_written_as_if_it_were_alone(
    dtype: torch.dtype, with_norm: bool
) -> None:
    attention = CpuAttention()
    caches = [attention.alloc_kv_cache(4, 2, 16, 2, 64, dtype) for _ in range(2)]
    for cache in (*caches[0], *caches[1]):
        cache.zero_()
    index = torch.arange(5).int(), torch.randperm(32)[:5]
    cos, sin = torch.randn(2, 5, 32)
    writes = attention.plan_writes(*index)
    for layer in range(4):
        strided = torch.randn(5, 9 + layer // 3, 64).to(dtype)  # the last one lies otherwise
        norms = torch.randn(2, 64).to(dtype) if with_norm else (None, None)
        rotation = Rotation(cos, sin, *norms, EPS)
        twice = [strided.clone(), strided.clone()]
        for fused, (k_cache, v_cache), run in zip(
            twice,
            caches,
            (writes.run, lambda *tensors: rotate_and_write(*tensors, *index)),
            strict=True,
        ):
            q, k, v = fused[:, :5], fused[:, 5:7], fused[:, 7:9]
            run(q, k, v, rotation, k_cache[layer], v_cache[layer])
        assert torch.equal(*twice)
    for one, other in zip(*caches, strict=True):
        assert torch.equal(one, other)
        assert all(bool(layer.any()) for layer in one)


def test_a_misfit_in_a_later_layer_is_refused() -> None:
    k_cache, v_cache = CpuAttention().alloc_kv_cache(2, 1, 16, 1, 64, torch.float32)
    writes = RotaryWrites(torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    q, angles = torch.zeros(1, 1, 64), torch.zeros(1, 32)
    rotation = Rotation(angles, angles, None, None, EPS)
    writes.run(q, q.clone(), q.clone(), rotation, k_cache[0], v_cache[0])
    with pytest.raises(ValueError, match="must be"):
        writes.run(q.bfloat16(), q, q, rotation, k_cache[1], v_cache[1])
    with pytest.raises(ValueError, match="must be"):
        writes.run(q, q, q, replace(rotation, cos=angles[:, :2]), k_cache[1], v_cache[1])
    with pytest.raises(ValueError, match="k and v must be"):
        writes.run(q, q.bfloat16(), q, rotation, k_cache[1], v_cache[1])
    with pytest.raises(ValueError, match="norms must be"):
        writes.run(q, q, q, replace(rotation, k_norm=torch.zeros(4)), k_cache[1], v_cache[1])


def _rotated(x: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
    """As complex numbers: pair (i, i + D / 2) times e^(i angle), in float64."""
    exact = x.double()
    if norm is not None:
        scale = (exact.square().mean(-1, keepdim=True) + rotation.eps).rsqrt()
        exact = exact * scale * norm.double()
    first, second = exact.chunk(2, dim=-1)
    turn = torch.complex(rotation.cos.double(), rotation.sin.double())[:, None]
    turned = torch.complex(first.contiguous(), second.contiguous()) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("vocab", [1, 7, 16, 1023, 1024, 1025, 5000])
def test_best_entry_and_whether_all_are_finite(dtype: torch.dtype, vocab: int) -> None:
    logits = torch.randn(9, vocab).to(dtype)
    # the best one first, last, twice, and the lowest number of all
    logits[0, 0] = logits[1, -1] = logits[2, vocab // 2] = logits[2, -1] = 50
    logits[3] = torch.finfo(dtype).min
    broken = (torch.nan, torch.inf, -torch.inf)
    for row, value in enumerate(broken, start=6):
        logits[row, (vocab - 1) * (row - 6) // 2] = value
    best, finite = argmax(logits)
    assert finite.tolist() == [True] * 6 + [False] * 3
    assert torch.equal(best[:6], logits[:6].double().argmax(-1))


def test_large_finite_logits_are_finite() -> None:
    assert argmax(torch.full((2, 400), 3e38))[1].all()


def test_logits_may_have_any_strides() -> None:
    logits = torch.randn(50, 3).t()
    assert torch.equal(argmax(logits)[0], logits.argmax(-1))


def test_threads_do_not_change_a_bit() -> None:
    hidden, branch, gate_up = torch.randn(3, 40, 96)
    weight = torch.randn(96)
    results = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        results.append((add_rms_norm(hidden.clone(), branch, weight, EPS), silu_mul(gate_up)))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_misfits_are_refused() -> None:
    hidden, weight = torch.zeros(2, 8), torch.zeros(8)
    with pytest.raises(ValueError, match="contiguous and of one dtype"):
        add_rms_norm(hidden.t(), None, weight, EPS)
    with pytest.raises(ValueError, match="does not fit"):
        add_rms_norm(hidden, torch.zeros(1, 8), weight, EPS)
    with pytest.raises(ValueError, match="must be contiguous"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="N > 0"):
        argmax(torch.zeros(2, 0))
    k_cache, v_cache = (c[0] for c in CpuAttention().alloc_kv_cache(1, 1, 16, 1, 8, torch.float32))
    q, angles = torch.zeros(1, 1, 8), torch.zeros(1, 4)
    index = (torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    good = Rotation(angles, angles, None, None, EPS)
    for wrong, rotation, slots in (
        (q.bfloat16(), good, index[1]),
        (q, Rotation(angles[:, :2], angles, None, None, EPS), index[1]),
        (q, Rotation(angles, angles, torch.zeros(4), None, EPS), index[1]),
        (q, good, index[0]),
    ):
        with pytest.raises(ValueError, match="must be"):
            rotate_and_write(wrong, q, q, rotation, k_cache, v_cache, index[0], slots)
