"""Prefixes that several sequences read at once: which are found, and what attention makes of it."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes, find_shared_prefixes
from tiny_pages import DTYPES, TOLERANCE, Problem, assert_close, paged_problem


def _check(kernel: CpuAttention, problem: Problem, dtype: torch.dtype) -> SharedPrefixes:
    shared = problem.shared()
    assert shared is not None
    actual = problem.run(kernel, shared=shared)
    assert_close(actual, problem.expected(), TOLERANCE[dtype])
    return shared


def _one_prefix(
    kernel: CpuAttention,
    dtype: torch.dtype,
    prefix_len: int,
    suffixes: Sequence[tuple[int, int]],
    heads: tuple[int, int, int] = (6, 2, 64),
    page_size: int = 16,
) -> Problem:
    """Sequences with `suffixes` (query rows, tokens) behind one prefix."""
    lens = [(rows, prefix_len + tokens) for rows, tokens in suffixes]
    problem = paged_problem(kernel, dtype, heads, page_size, lens)
    problem.share(range(len(lens)), prefix_len // page_size * page_size)
    return problem


# around pages, vectors and tiles; decodes and chunks
SUFFIXES = ((1, 1), (1, 15), (1, 16), (1, 17), (1, 33), (7, 7), (20, 31), (70, 70), (1, 257))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 8, 12, 16, 32])
@pytest.mark.parametrize("prefix_len", [96, 255, 256, 257, 1600])
def test_any_page_size_matches_float64(
    kernel: CpuAttention, dtype: torch.dtype, page_size: int, prefix_len: int
) -> None:
    problem = _one_prefix(kernel, dtype, prefix_len, SUFFIXES, page_size=page_size)
    shared = _check(kernel, problem, dtype)
    assert shared.end.tolist() == [prefix_len // page_size * page_size]
    assert shared.group.tolist() == [0] * len(SUFFIXES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8])
def test_any_heads_match_float64(
    kernel: CpuAttention, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    heads = (group * 2, 2, head_dim)
    _check(kernel, _one_prefix(kernel, dtype, 112, ((1, 9), (1, 40), (5, 5)), heads), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_sharers", [2, 3, 16, 17, 64])
def test_any_number_of_sharers_matches_float64(
    kernel: CpuAttention, dtype: torch.dtype, num_sharers: int
) -> None:
    suffixes = [(1, 1 + 3 * i) for i in range(num_sharers)]
    _check(kernel, _one_prefix(kernel, dtype, 320, suffixes), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_context_may_end_with_its_prefix(kernel: CpuAttention, dtype: torch.dtype) -> None:
    problem = _one_prefix(kernel, dtype, 128, ((1, 0), (1, 0), (1, 5), (0, 3)))
    assert _check(kernel, problem, dtype).end.tolist() == [128]


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefixes_within_prefixes_match_float64(kernel: CpuAttention, dtype: torch.dtype) -> None:
    lens = [(1, 700), (4, 650), (1, 530), (1, 400), (30, 421), (1, 100), (1, 1700), (1, 1601)]
    problem = paged_problem(kernel, dtype, (3, 1, 64), 16, lens)
    problem.share(range(5), 320)
    problem.share([0, 1, 2], 512)
    problem.share([0, 1], 640)
    problem.share([6, 7], 1536)
    shared = _check(kernel, problem, dtype)
    assert shared.begin.tolist() == [0, 0, 320, 512]
    assert shared.end.tolist() == [1536, 320, 512, 640]
    assert shared.parent.tolist() == [-1, -1, 1, 2]
    assert shared.group.tolist() == [3, 3, 2, 1, 1, -1, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_do_not_change_a_bit(kernel: CpuAttention, dtype: torch.dtype) -> None:
    problem = _one_prefix(kernel, dtype, 1600, SUFFIXES)
    shared = problem.shared()
    one = problem.run(kernel, shared=shared)
    torch.set_num_threads(2)
    assert torch.equal(problem.run(kernel, shared=shared), one)


def test_sharers_need_not_lie_side_by_side_in_the_batch(kernel: CpuAttention) -> None:
    problem = paged_problem(kernel, torch.float32, (4, 2, 64), 16, [(1, 200), (3, 90), (2, 180)])
    problem.share([2, 0], 160)
    shared = problem.shared(order=[1, 2, 0])
    assert shared is not None
    assert shared.group.tolist() == [0, -1, 0]
    assert_close(problem.run(kernel, shared=shared), problem.expected(), 1e-5)
    with pytest.raises(ValueError, match="other sequences"):
        problem.run(kernel, shared=SharedPrefixes(shared.order[:2], *shared.columns()[1:]))


def _two_sequences(prefix_len: int, num_tokens: tuple[int, int] = (1, 1)) -> SharedPrefixes | None:
    table = np.tile(np.arange(200, dtype=np.int32), (2, 1))
    table[1, prefix_len // 16 :] += 200
    contexts = np.full(2, 3200, np.int32)
    order, rows = np.array([1, 0], np.int32), np.array(num_tokens, np.int32)
    return find_shared_prefixes(order, table, rows, contexts, 16, 1)


def test_a_prefix_is_shared_where_that_saves_more_than_it_costs() -> None:
    assert _two_sequences(144) is None
    assert _two_sequences(160) is not None
    assert _two_sequences(480, (3, 1)) is not None
    # many query rows read a prefix well alone
    assert _two_sequences(3000, (32, 1)) is None


def test_nothing_is_shared_in_a_step_of_one_or_none() -> None:
    for n in (0, 1):
        ones, table = np.ones(n, np.int32), np.zeros((n, 50), np.int32)
        order = np.arange(n, dtype=np.int32)
        assert find_shared_prefixes(order, table, ones, 800 * ones, 16, 1) is None


def test_tokens_that_a_query_does_not_see_are_not_shared() -> None:
    shared = _two_sequences(3200, (1, 5))
    assert shared is not None
    assert shared.end.tolist() == [3184]  # the first of the five sees 3196


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=12))
def test_every_group_is_a_common_prefix_and_nests(rows: list[list[int]]) -> None:
    page_size = 32
    rows = sorted(rows)
    prefixes = sorted({tuple(row[: i + 1]) for row in rows for i in range(len(row))})
    page = {prefix: number for number, prefix in enumerate(prefixes)}
    table = np.full((len(rows), 9), -1, np.int32)
    for r, row in enumerate(rows):
        table[r, : len(row)] = [page[tuple(row[: i + 1])] for i in range(len(row))]
    contexts = np.array([len(row) * page_size for row in rows], np.int32)
    order, ones = np.arange(len(rows), dtype=np.int32), np.ones(len(rows), np.int32)
    shared = find_shared_prefixes(order, table, ones, contexts, page_size, 1, cost_len=0)
    reads = sum(contexts)
    for g in range(0 if shared is None else shared.num_groups):
        members = range(shared.first[g], shared.last[g])
        assert len({tuple(table[m, : shared.end[g] // page_size]) for m in members}) == 1
        above = shared.parent[g]
        assert above < g
        assert shared.begin[g] == (0 if above < 0 else shared.end[above])
        assert above < 0 or set(members) <= set(range(shared.first[above], shared.last[above]))
        reads -= (len(members) - 1) * (shared.end[g] - shared.begin[g])
    assert reads == len(prefixes) * page_size  # each page once
