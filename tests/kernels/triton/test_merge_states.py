"""Attention states joined by log-sum-exp, and shared prefixes as levels of a cascade."""

import itertools
import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; it exists for Linux only")

from blendrun.kernels.triton import merge_states_reference as reference
from blendrun.kernels.triton.attention import paged_attention, plan_attention
from blendrun.kernels.triton.merge_states import merge_launch, merge_states
from blendrun.kernels.triton.page_index import DevicePageIndex
from tiny_nhd_pages import DEVICE, DTYPES, TOLERANCE, Problem, nhd_problem, page_index
from tiny_nhd_pages import relative_error as error_of


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("num_parts", "num_heads"), [(1, 1), (2, 28), (4, 9)])
def test_parts_are_joined_as_in_float64(
    dtype: torch.dtype, head_dim: int, num_parts: int, num_heads: int
) -> None:
    torch.manual_seed(0)
    values = torch.randn(3, num_parts, num_heads, head_dim, device=DEVICE).to(dtype)
    lse = torch.randn(3, num_parts, num_heads, device=DEVICE) * 9
    lse[1, 0] = -math.inf
    lse[2] = -math.inf
    out, out_lse = merge_states(values, lse)
    expected, expected_lse = reference.merge_states(values.double(), lse)
    assert out.dtype == dtype
    assert error_of(out, expected) < TOLERANCE[dtype]
    torch.testing.assert_close(out_lse.double(), expected_lse, rtol=1e-6, atol=1e-6)


def _levels(problem: Problem, levels: list[tuple[DevicePageIndex, bool]]) -> tuple[Tensor, Tensor]:
    """Attention of each level into its part of the states, and their merge."""
    (num_rows, num_heads, head_dim), num_parts = problem.q.shape, len(levels)
    values = problem.q.new_empty(num_rows, num_parts, num_heads, head_dim)
    lse = torch.empty(num_rows, num_parts, num_heads, device=DEVICE)
    caches = (problem.k_cache, problem.v_cache)
    for level, (index, causal) in enumerate(levels):
        plan = plan_attention(problem.q, problem.k_cache, index, causal=causal, chunk_len=48)
        plan.run(problem.q, *caches, problem.scale, values[:, level], lse[:, level])
    return merge_states(values, lse)


def _cascade(dtype: torch.dtype) -> tuple[Problem, list[tuple[list[list[int]], list[int]]]]:
    """Five sequences: 0 to 3 share 32 tokens, 1 and 2 of them 48 more; pages of each level."""
    page_size = 16
    lens = ((1, 40), (1, 90), (3, 100), (1, 32), (2, 20))
    problem = nhd_problem(dtype, (6, 2, 64), page_size, lens)
    index = problem.index
    bounds, flat = index.kv_indptr.tolist(), index.kv_indices.tolist()
    pages = [flat[a:b] for a, b in itertools.pairwise(bounds)]
    for sharers, num_tokens in (((0, 1, 2, 3), 32), ((1, 2), 80)):
        for s in sharers[1:]:
            count = num_tokens // page_size
            pages[s][:count] = pages[sharers[0]][:count]
            for dense in (problem.k, problem.v):
                dense[s][:num_tokens] = dense[sharers[0]][:num_tokens]
    last = index.kv_last_page_len.tolist()
    outer = ([pages[0][:2], []], [6, 2])
    inner = ([[], pages[1][2:5], []], [1, 4, 3])
    own = ([pages[0][2:], pages[1][5:], pages[2][5:], pages[3][2:], pages[4]], [1, 1, 3, 1, 2])
    problem.index = page_index([1, 1, 3, 1, 2], pages, last)
    return problem, [outer, inner, own]


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefixes_within_prefixes_match_attention_over_all(dtype: torch.dtype) -> None:
    problem, (outer, inner, own) = _cascade(dtype)
    last = problem.index.kv_last_page_len.tolist()
    levels = [
        (page_index(outer[1], outer[0], [16, 0]), False),
        (page_index(inner[1], inner[0], [0, 16, 0]), False),
        (page_index(own[1], own[0], last), True),
    ]
    out, lse = _levels(problem, levels)
    caches = (problem.k_cache, problem.v_cache)
    alone, lse_alone = paged_attention(problem.q, *caches, problem.index, problem.scale)
    assert error_of(alone, problem.expected()) < TOLERANCE[dtype]
    assert error_of(out, problem.expected()) < TOLERANCE[dtype]
    torch.testing.assert_close(lse, lse_alone, rtol=1e-3, atol=1e-3)


def test_a_swapped_level_is_noticed() -> None:
    problem, (outer, inner, own) = _cascade(torch.float32)
    last = problem.index.kv_last_page_len.tolist()
    levels = [
        (page_index(outer[1], [inner[0][1][:2], []], [16, 0]), False),
        (page_index(inner[1], [[], outer[0][0], []], [0, 16, 0]), False),
        (page_index(own[1], own[0], last), True),
    ]
    assert error_of(_levels(problem, levels)[0], problem.expected()) > 1e-2


def test_misfits_are_refused() -> None:
    values, lse = torch.zeros(2, 3, 4, 16), torch.zeros(2, 3, 4)
    for wrong_values, wrong_lse, reason in (
        (values[0], lse[0], "values"),
        (values, lse.double(), "lse"),
        (values, lse[:, :2], "lse"),
        (values.transpose(0, 1), lse.transpose(0, 1), "contiguous"),
    ):
        with pytest.raises(ValueError, match=reason):
            merge_states(wrong_values, wrong_lse)
    with pytest.raises(ValueError, match="values"):
        merge_launch(values, lse, torch.zeros(3, dtype=torch.int32), None, values[:, 0], None)
