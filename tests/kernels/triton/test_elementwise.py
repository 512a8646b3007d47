"""Norm, rotation with KV writes, and the middle of the MLP in Triton, against float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed; it exists for Linux only")

from blendrun.kernels.cpu import rms_norm_reference, silu_mul_reference
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.triton import rotary_reference
from blendrun.kernels.triton.rms_norm import add_rms_norm
from blendrun.kernels.triton.rotary import rotate_and_write
from blendrun.kernels.triton.silu_mul import silu_mul
from tiny_nhd_pages import DEVICE, DTYPES, TOLERANCE
from tiny_nhd_pages import relative_error as error_of

EPS = 1e-3


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 7, 576, 1003])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_norm_of_the_residual_stream(dtype: torch.dtype, width: int, num_rows: int) -> None:
    hidden, branch = (torch.randn(2, num_rows, width, device=DEVICE) * 3).to(dtype)
    weight = torch.randn(width, device=DEVICE).to(dtype)
    before = hidden.clone()
    alone = add_rms_norm(hidden, None, weight, EPS)
    assert torch.equal(hidden, before)
    both = add_rms_norm(hidden, branch, weight, EPS)
    assert torch.equal(hidden, before + branch)
    for actual, of in ((alone, before), (both, hidden)):
        exact = rms_norm_reference.add_rms_norm(of.double(), None, weight.double(), EPS)
        assert actual.dtype == dtype
        assert actual.shape == hidden.shape
        if num_rows:
            assert error_of(actual, exact) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 7, 96, 1537])
def test_silu_of_gate_times_up(dtype: torch.dtype, width: int) -> None:
    gate_up = (torch.randn(5, 2 * width, device=DEVICE) * 5).to(dtype)
    exact = silu_mul_reference.silu_mul(gate_up.double())
    actual = silu_mul(gate_up)
    assert actual.dtype == dtype
    bound = TOLERANCE[dtype] * exact.abs() + 1e-6 * (dtype == torch.float16)  # subnormal
    assert bool(((actual.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_of_extremes_is_finite(dtype: torch.dtype) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e30], device=DEVICE)
    actual = silu_mul(torch.cat([gate, torch.ones_like(gate)])[None].to(dtype))[0].float()
    torch.testing.assert_close(actual, F.silu(gate), rtol=1e-2, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("page_size", "with_norm"), [(1, False), (8, True), (16, False), (16, True), (32, False)]
)
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_rotated_keys_and_values_lie_in_their_slots(
    dtype: torch.dtype, page_size: int, head_dim: int, with_norm: bool
) -> None:
    num_tokens, num_q_heads, num_kv_heads = 5, 6, 2
    fused = torch.randn(num_tokens, 10, head_dim, device=DEVICE).to(dtype)
    norms = torch.randn(2, head_dim, device=DEVICE).to(dtype) if with_norm else (None, None)
    angles = torch.randn(num_tokens, head_dim // 2, device=DEVICE) * 100
    rotation = Rotation(angles.cos(), angles.sin(), norms[0], norms[1], EPS)
    slots = torch.randperm(64, device=DEVICE)[:8]
    more = torch.randint(0, num_tokens, (3,), device=DEVICE)
    token_idx = torch.cat([torch.arange(num_tokens, device=DEVICE), more]).int()
    results = []
    for exact in (False, True):
        kind = torch.float64 if exact else dtype
        parts = fused.clone().to(kind).split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
        shape = (64 // page_size, page_size, num_kv_heads, head_dim)
        caches = [torch.full(shape, 7.0, dtype=kind, device=DEVICE) for _ in "kv"]
        function = rotary_reference.rotate_and_write if exact else rotate_and_write
        function(*parts, _in(kind, rotation) if exact else rotation, *caches, token_idx, slots)
        results.append((*parts, *caches))
    (q, k, v, k_cache, v_cache), (exact_q, *_, exact_k_cache, _) = results
    assert error_of(q, exact_q) < TOLERANCE[dtype]
    assert error_of(k_cache, exact_k_cache) < TOLERANCE[dtype]
    assert torch.equal(torch.cat([k, v], dim=1), fused[:, num_q_heads:])
    assert torch.equal(v_cache.flatten(0, 1)[slots], v[token_idx.long()])
    kept = torch.ones(64, dtype=torch.bool, device=DEVICE)
    kept[slots] = False
    assert all(bool((cache.flatten(0, 1)[kept] == 7).all()) for cache in (k_cache, v_cache))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_caches_may_be_float8(dtype: torch.dtype) -> None:
    fused = (torch.randn(5, 10, 64, device=DEVICE) * 10).to(dtype)
    fused[0, 6:, :3] = torch.tensor([449.0, -1e4, 2.0**-9])  # of k and v
    fused[1, 8:, 0] = torch.inf
    q, k, v = fused.split([6, 2, 2], dim=1)
    # no turn: what is written is what is given, rounded
    still = torch.zeros(5, 32, device=DEVICE)
    rotation = Rotation(still + 1, still, None, None, EPS)
    slots, tokens = torch.randperm(16, device=DEVICE)[:5], torch.arange(5, device=DEVICE).int()
    made, expected = (
        [torch.zeros(2, 8, 2, 64, dtype=torch.float8_e4m3fn, device=DEVICE) for _ in "kv"]
        for _ in range(2)
    )
    rotary_reference.rotate_and_write(q.clone(), k, v, rotation, *expected, tokens, slots)
    rotate_and_write(q.clone(), k, v, rotation, *made, tokens, slots)
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    assert float(made[1].float().max()) == 448.0


def _in(dtype: torch.dtype, rotation: Rotation) -> Rotation:
    q_norm, k_norm = (
        None if n is None else n.to(dtype) for n in (rotation.q_norm, rotation.k_norm)
    )
    return Rotation(rotation.cos.to(dtype), rotation.sin.to(dtype), q_norm, k_norm, rotation.eps)


def _zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(sizes, dtype=dtype)


def test_misfits_are_refused() -> None:
    hidden, weight = _zeros(2, 8), _zeros(8)
    with pytest.raises(ValueError, match="contiguous and of one dtype"):
        add_rms_norm(hidden.t(), None, weight, EPS)
    with pytest.raises(ValueError, match="does not fit"):
        add_rms_norm(hidden, _zeros(1, 8), weight, EPS)
    with pytest.raises(ValueError, match="wider"):
        add_rms_norm(_zeros(1, 40000), None, _zeros(40000), EPS)
    with pytest.raises(ValueError, match="must be contiguous"):
        silu_mul(_zeros(2, 7))
    cache, q, angles = _zeros(1, 16, 1, 8), _zeros(1, 1, 8), _zeros(1, 4)
    index = (_zeros(1, dtype=torch.int32), _zeros(1, dtype=torch.int64))
    good = Rotation(angles, angles, None, None, EPS)
    for wrong, k, rotation, slots in (
        (q.bfloat16(), q, good, index[1]),
        (q, _zeros(1, 2, 8), good, index[1]),
        (q, q, Rotation(angles[:, :2], angles, None, None, EPS), index[1]),
        (q, q, Rotation(angles, angles, _zeros(4), None, EPS), index[1]),
        (q, q, good, index[0]),
    ):
        with pytest.raises(ValueError, match="must be"):
            rotate_and_write(wrong, k, q, rotation, cache, cache, index[0], slots)
    with pytest.raises(ValueError, match="alike"):
        rotate_and_write(q, q, q, good, cache, _zeros(2, 16, 1, 8), index[0], index[1])
