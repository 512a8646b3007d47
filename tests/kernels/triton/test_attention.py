"""Paged attention in Triton against float64: every head size, group, page size and edge."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; it exists for Linux only")

from blendrun.kernels.triton import attention_reference as reference
from blendrun.kernels.triton.attention import paged_attention, plan_attention
from blendrun.kernels.triton.page_index import DevicePageIndex
from tiny_nhd_pages import DEVICE, DTYPES, TOLERANCE, Problem, nhd_problem, page_index
from tiny_nhd_pages import relative_error as error_of

# (query rows, context) around pages of 8, 16 and 32 and blocks of 32, 64 and 128
DECODES = tuple((1, n) for n in (1, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 128, 129))
CHUNKS = ((0, 0), (2, 2), (16, 16), (17, 17), (33, 64), (33, 65), (3, 40), (65, 70), (0, 5))


def _run(problem: Problem, **options: object) -> tuple[Tensor, Tensor]:
    caches = (problem.k_cache, problem.v_cache)
    return paged_attention(problem.q, *caches, problem.index, problem.scale, **options)


def _exact(problem: Problem, **options: object) -> tuple[Tensor, Tensor]:
    tensors = (t.double() for t in (problem.q, problem.k_cache, problem.v_cache))
    return reference.paged_attention(*tensors, problem.index, problem.scale, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8])
def test_any_heads_match_float64(dtype: torch.dtype, head_dim: int, group: int) -> None:
    lens = ((1, 9), (1, 34), (6, 6), (0, 0))
    problem = nhd_problem(dtype, (group * 2, 2, head_dim), 16, lens)
    assert error_of(_run(problem)[0], problem.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_float16_matches_float64(head_dim: int) -> None:
    lens = ((1, 9), (1, 34), (6, 6), (20, 33))
    problem = nhd_problem(torch.float16, (6, 2, head_dim), 16, lens)
    out, _ = _run(problem, chunk_len=16)
    assert error_of(out, problem.expected()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 8, 12, 16, 32])
@pytest.mark.parametrize("chunk_len", [None, 48])
def test_any_page_size_and_length_matches_float64(
    dtype: torch.dtype, page_size: int, chunk_len: int | None
) -> None:
    problem = nhd_problem(dtype, (2, 1, 64), page_size, DECODES + CHUNKS)
    assert error_of(_run(problem, chunk_len=chunk_len)[0], problem.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk_len", [None, 32])
def test_log_sum_exp_is_base_2_of_what_a_row_sees(causal: bool, chunk_len: int | None) -> None:
    problem = nhd_problem(torch.float32, (6, 2, 64), 16, ((1, 70), (20, 50), (3, 2), (2, 0)))
    options = {"causal": causal, "chunk_len": chunk_len}
    (out, lse), (exact, exact_lse) = _run(problem, **options), _exact(problem, **options)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=1e-6)
    assert error_of(out, exact) < 1e-5
    assert torch.equal(lse[-2:], torch.full((2, 6), -math.inf, device=DEVICE))


def test_reference_matches_dense_attention() -> None:
    problem = nhd_problem(torch.float32, (6, 2, 64), 16, DECODES + CHUNKS)
    assert error_of(_exact(problem)[0], problem.expected()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 17])
def test_a_prefix_is_seen_by_all_rows_of_its_sharers(dtype: torch.dtype, num_rows: int) -> None:
    problem = nhd_problem(dtype, (8, 2, 64), 16, ((num_rows, 150), (0, 0), (1, 3)))
    out, _ = _run(problem, causal=False, chunk_len=64)
    assert error_of(out, _exact(problem, causal=False)[0]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_caches_may_be_float8(dtype: torch.dtype) -> None:
    problem = nhd_problem(dtype, (4, 2, 64), 16, ((1, 70), (40, 50)))
    caches = (problem.k_cache, problem.v_cache)
    k_cache, v_cache = (x.nan_to_num(0).to(torch.float8_e4m3fn) for x in caches)
    scales = {"k_scale": 0.5, "v_scale": 3.0}
    rest = (problem.index, problem.scale)
    out, lse = paged_attention(problem.q, k_cache, v_cache, *rest, **scales)
    exact = (t.double() for t in (problem.q, k_cache, v_cache))
    expected, exact_lse = reference.paged_attention(*exact, *rest, **scales)
    assert error_of(out, expected) < TOLERANCE[dtype]
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


def test_q_out_and_caches_may_be_parts_of_larger_tensors() -> None:
    problem = nhd_problem(torch.float32, (6, 2, 64), 16, ((1, 40), (9, 30)))
    fused = torch.randn(10, 10, 64, device=DEVICE)
    fused[:, :6] = problem.q
    both = torch.stack([problem.k_cache, problem.v_cache], dim=1)  # FlashInfer's joint cache
    q, k_cache, v_cache = fused[:, :6], both[:, 0], both[:, 1]
    out, lse = torch.zeros(10, 3, 6, 64, device=DEVICE), torch.zeros(10, 3, 6, device=DEVICE)
    plan = plan_attention(q, k_cache, problem.index, chunk_len=32)
    plan.run(q, k_cache, v_cache, problem.scale, out[:, 1], lse[:, 1])
    assert error_of(out[:, 1], problem.expected()) < 1e-5
    assert not out[:, ::2].any()
    assert not lse[:, ::2].any()
    assert lse[:, 1].all()


@pytest.mark.parametrize("chunk_len", [None, 64])
def test_a_row_has_the_same_bits_whoever_is_beside_it(chunk_len: int | None) -> None:
    problem = nhd_problem(torch.float32, (4, 2, 64), 16, ((1, 200), (1, 20), (50, 80), (1, 90)))
    together = _run(problem, chunk_len=chunk_len)[0]
    index = problem.index
    first = DevicePageIndex(
        index.qo_indptr[:2], index.kv_indptr[:2], index.kv_indices, index.kv_last_page_len[:1]
    )
    alone = replace(problem, q=problem.q[:1], index=first)
    assert torch.equal(_run(alone, chunk_len=chunk_len)[0], together[:1])


def _off_by_one_page(index: DevicePageIndex) -> DevicePageIndex:
    pages = index.kv_indices.clone()
    pages[3] = pages[3] + 1 if pages[3] < pages.max() else pages[3] - 1
    return replace(index, kv_indices=pages)


def _planted(column: str, place: int, step: int) -> object:
    def plant(index: DevicePageIndex) -> DevicePageIndex:
        values = getattr(index, column).clone()
        values[place] += step
        return replace(index, **{column: values})

    return plant


@pytest.mark.parametrize(
    "plant",
    [
        _off_by_one_page,
        _planted("kv_last_page_len", 0, -1),
        _planted("kv_last_page_len", 1, 1),
        _planted("kv_indptr", 1, -1),
        _planted("kv_indptr", 1, 1),
        _planted("qo_indptr", 1, 1),
        _planted("qo_indptr", 2, -1),
    ],
)
def test_a_planted_error_in_an_index_array_is_noticed(plant) -> None:
    problem = nhd_problem(torch.float32, (4, 2, 64), 8, ((1, 20), (5, 37), (3, 16)))
    full = replace(
        problem, k_cache=problem.k_cache.nan_to_num(1), v_cache=problem.v_cache.nan_to_num(1)
    )
    assert error_of(_run(full)[0], problem.expected()) < 1e-5
    wrong = replace(full, index=plant(problem.index))
    assert error_of(_run(wrong)[0], problem.expected()) > 1e-2


def _shapes(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(sizes, dtype=dtype, device=DEVICE)


def test_misfits_are_refused() -> None:
    q, cache = _shapes((3, 4, 16)), _shapes((2, 8, 2, 16))
    good = page_index([1, 2], [[0], [1]], [8, 3])
    plan = plan_attention(q, cache, good)
    for wrong_q, wrong_cache in (
        (q.double(), cache),
        (_shapes((3, 4, 32)), cache),
        (_shapes((3, 5, 16)), cache),
    ):
        with pytest.raises(ValueError, match="does not fit caches"):
            plan_attention(wrong_q, wrong_cache, good)
    for index, reason in (
        (page_index([1, 1], [[0], [1]], [8, 3]), "not at 3 rows"),
        (page_index([1, 2], [[0], [1]], [9, 3]), "1 to 8 tokens"),
        (page_index([1, 2], [[0], [1]], [0, 3]), "1 to 8 tokens"),
        (replace(good, kv_last_page_len=good.kv_last_page_len[:1]), "disagree"),
        (replace(good, kv_indptr=good.kv_indptr.flip(0)), "rise from 0"),
        (replace(good, kv_indices=good.kv_indices[:1]), "behind kv_indices"),
    ):
        with pytest.raises(ValueError, match=reason):
            plan_attention(q, cache, index)
    with pytest.raises(ValueError, match="positive"):
        plan_attention(q, cache, good, chunk_len=0)
    for change, reason in (
        ({"q": q[:2]}, "q must be"),
        ({"k_cache": cache[:1]}, "caches"),
        ({"v_cache": cache.transpose(1, 2).contiguous().transpose(1, 2)}, "caches"),
        ({"out": _shapes((3, 4, 16), torch.float16)}, "out must"),
        ({"lse": _shapes((3, 5))}, "lse must"),
    ):
        tensors = {"q": q, "k_cache": cache, "v_cache": cache, "out": q, **change}
        with pytest.raises(ValueError, match=reason):
            plan.run(scale=1.0, **tensors)
