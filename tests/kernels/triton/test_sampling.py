"""Best token, noise and draws in Triton: what the product's own sampler gives."""

import numpy as np
import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="Triton is not installed; it exists for Linux only")

import triton.language as tl

from blendrun.engine.noise import uniforms
from blendrun.engine.sampler import SamplingColumns, sample
from blendrun.kernels.cpu import argmax_reference
from blendrun.kernels.triton.argmax import argmax
from blendrun.kernels.triton.draw import DrawColumns, draw
from blendrun.kernels.triton.noise import uniform
from tiny_nhd_pages import DEVICE, DTYPES

VOCABS = [1, 7, 1023, 1024, 1025, 4097, 9000]


@triton.jit
def _uniforms(seed, key, sample, position, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    counters = (tl.load(seed + i), tl.load(key + i), tl.load(sample + i), tl.load(position + i))
    tl.store(out + i, uniform(counters[0], counters[1], counters[2], counters[3]))


def test_noise_is_that_of_the_engine_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    ends = [-(2**63), 2**63 - 1, 0, -1]
    columns = [np.append(rng.integers(-(2**63), 2**63 - 1, 252), ends) for _ in range(4)]
    columns[2] = columns[2].astype(np.int32)
    out = torch.empty(256, dtype=torch.float64, device=DEVICE)
    _uniforms[(1,)](*(torch.from_numpy(c).to(DEVICE) for c in columns), out, 256)
    assert out.cpu().numpy().tobytes() == uniforms(*columns).tobytes()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("vocab", VOCABS)
def test_best_entry_and_whether_all_are_finite(dtype: torch.dtype, vocab: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, vocab, device=DEVICE).to(dtype)
    # the best one first, last, twice, and the lowest number of all
    logits[0, 0] = logits[1, -1] = logits[2, vocab // 2] = logits[2, -1] = 50
    logits[3] = torch.finfo(dtype).min
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf), start=6):
        logits[row, (vocab - 1) * (row - 6) // 2] = value
    best, finite = argmax(logits)
    expected, expected_finite = argmax_reference.argmax(logits)
    assert finite.tolist() == expected_finite.tolist() == [True] * 6 + [False] * 3
    assert torch.equal(best[:6], expected[:6])


def test_logits_may_have_any_strides() -> None:
    logits = torch.randn(50, 3, device=DEVICE).t()
    assert torch.equal(argmax(logits)[0], logits.argmax(-1))


def _columns(num_rows: int, **changes: float) -> SamplingColumns:
    rng = np.random.default_rng(1)
    counters = {name: rng.integers(-(2**62), 2**62, num_rows) for name in ("seed", "key")}
    full = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, **changes}
    kinds = {"top_k": np.int32}
    return SamplingColumns(
        **{name: np.full(num_rows, v, kinds.get(name, np.float32)) for name, v in full.items()},
        **counters,
        sample=rng.integers(0, 9, num_rows).astype(np.int32),
        position=np.arange(num_rows),
    )


def _draw(logits: Tensor, columns: SamplingColumns, rows: Tensor) -> np.ndarray:
    lowest = torch.full((len(logits),), -torch.inf)
    if columns.top_k[0]:
        lowest = logits.float().topk(int(columns.top_k[0])).values[:, -1].contiguous().cpu()
    names = ("temperature", "min_p", "seed", "key", "sample", "position")
    own = {name: torch.from_numpy(getattr(columns, name)).to(DEVICE) for name in names}
    on_device = DrawColumns(**own, lowest=lowest.to(DEVICE))
    return draw(logits, argmax(logits)[0], rows, on_device).cpu().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.3}, {"temperature": 5.0, "min_p": 0.05}])
def test_draws_are_those_of_the_sampler(dtype: torch.dtype, vocab: int, changes: dict) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(12, vocab, device=DEVICE) * 2).to(dtype)
    columns = _columns(12, **changes)
    drawn = _draw(logits, columns, torch.arange(12, dtype=torch.int32, device=DEVICE))
    assert drawn.tolist() == sample(logits, columns).token_ids.tolist()
    assert vocab < 1000 or len(set(drawn.tolist())) > 6  # not all greedy


def test_top_k_is_a_lowest_logit() -> None:
    torch.manual_seed(0)
    logits, columns = torch.randn(12, 3000, device=DEVICE), _columns(12, top_k=3)
    drawn = _draw(logits, columns, torch.arange(12, dtype=torch.int32, device=DEVICE))
    assert drawn.tolist() == sample(logits, columns).token_ids.tolist()
    best = logits.topk(3).indices.tolist()
    assert all(token in of for token, of in zip(drawn.tolist(), best, strict=True))


def test_only_some_rows_are_drawn_and_a_masked_token_never_is() -> None:
    torch.manual_seed(0)
    logits, columns = torch.zeros(6, 40, device=DEVICE), _columns(6)
    rows = torch.tensor([5, 0, 3], dtype=torch.int32, device=DEVICE)
    free = _draw(logits, columns, rows)
    assert free.tolist() == sample(logits, columns).token_ids[[5, 0, 3]].tolist()
    logits[5, free[0]] = -torch.inf
    again = _draw(logits, columns, rows)
    assert again[0] != free[0]
    assert again[1:].tolist() == free[1:].tolist()


def test_misfits_are_refused() -> None:
    logits, rows = torch.zeros(2, 8), torch.zeros(1, dtype=torch.int32)
    best = torch.zeros(2, dtype=torch.int64)
    columns = DrawColumns(*[torch.zeros(2)] * 7)
    with pytest.raises(ValueError, match="N > 0"):
        argmax(logits[:, :0])
    for args, reason in (
        ((logits[0], best, rows, columns), "N > 0"),
        ((logits.double(), best, rows, columns), "float64"),
        ((logits, best.int(), rows, columns), "int64"),
        ((logits, best[:1], rows, columns), "contiguous"),
    ):
        with pytest.raises(ValueError, match=reason):
            draw(*args)
