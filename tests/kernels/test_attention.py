"""CPU paged attention, C++ and plain torch, against float64 arithmetic on dense K and V."""

import math
from collections.abc import Iterator

import pytest
import torch

from blendrun.errors import InputError
from blendrun.kernels.cpu import attention, build, library
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.kv_cache import KvShape
from tiny_pages import DTYPES, MIXED, TOLERANCE, assert_close, dense_attention, paged_problem


@pytest.fixture(scope="module")
def cpp() -> CpuAttention:
    try:
        return CpuAttention("cpp")
    except InputError as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 2, 8, 12, 16, 32])
def test_mixed_batches_match_float64(
    kernel: CpuAttention, dtype: torch.dtype, page_size: int
) -> None:
    problem = paged_problem(kernel, dtype, page_size=page_size)
    assert_close(problem.run(kernel), problem.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 72, 80, 96, 112, 128, 256])
def test_any_head_dim_matches_float64(
    kernel: CpuAttention, dtype: torch.dtype, head_dim: int
) -> None:
    lens = ((1, 1), (1, 50), (1, 300), (9, 40))
    problem = paged_problem(kernel, dtype, heads=(3, 1, head_dim), lens=lens)
    assert_close(problem.run(kernel), problem.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_any_group_of_heads_matches_float64(
    kernel: CpuAttention, dtype: torch.dtype, num_kv_heads: int, group: int
) -> None:
    lens = ((1, 19), (1, 270), (13, 29))
    heads = (group * num_kv_heads, num_kv_heads, 64)
    problem = paged_problem(kernel, dtype, heads=heads, lens=lens)
    assert_close(problem.run(kernel), problem.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [12, 16])
@pytest.mark.parametrize("heads", [(6, 2, 64), (3, 1, 80)])
def test_contexts_of_one_tile_and_more_match_float64(
    kernel: CpuAttention, dtype: torch.dtype, page_size: int, heads: tuple[int, int, int]
) -> None:
    lens = ((1, 1023), (1, 1024), (1, 1025), (1, 3100), (30, 1040), (9, 2060))
    problem = paged_problem(kernel, dtype, page_size=page_size, heads=heads, lens=lens)
    for may_split in (True, False):
        assert_close(problem.run(kernel, may_split=may_split), problem.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 2, 64), (9, 3, 64), (3, 1, 24), (16, 2, 128)])
def test_without_splits_a_row_is_the_same_in_any_chunk(
    cpp: CpuAttention, dtype: torch.dtype, heads: tuple[int, int, int]
) -> None:
    whole = paged_problem(cpp, dtype, heads=heads, lens=((300, 1900),))
    caches, pages = (whole.k_cache[0], whole.v_cache[0]), whole.page_table

    def rows(first: int, count: int) -> torch.Tensor:
        index = torch.tensor([0, count]), torch.tensor([1600 + first + count]), pages
        q = whole.q[first : first + count]
        return cpp.paged_attention(q, *caches, *index, whole.scale, may_split=False)

    together = rows(0, 300)
    assert_close(together, whole.expected(), TOLERANCE[dtype])
    first = 0
    for count in (1, 2, 47, 1, 5, 13, 48, 49, 1, 100, 33):
        assert torch.equal(rows(first, count), together[first : first + count]), (first, count)
        first += count
    assert first == 300


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_neither_overflow_nor_vanish(kernel: CpuAttention, dtype: torch.dtype) -> None:
    problem = paged_problem(kernel, dtype, lens=((1, 2500), (20, 1300)))
    problem.scale = 10.0
    assert_close(problem.run(kernel), problem.expected(), 20 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_may_share_pages(kernel: CpuAttention, dtype: torch.dtype) -> None:
    problem = paged_problem(kernel, dtype, lens=((1, 64), (1, 50), (7, 40)))
    problem.page_table[1, :3] = problem.page_table[0, :3]
    problem.page_table[2, :2] = problem.page_table[0, :2]
    for s, shared in ((1, 48), (2, 32)):
        problem.k[s][:shared] = problem.k[0][:shared]
        problem.v[s][:shared] = problem.v[0][:shared]
    assert_close(problem.run(kernel), problem.expected(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_of_a_fused_projection_need_no_copy(
    kernel: CpuAttention, dtype: torch.dtype
) -> None:
    fused = torch.randn(20, 8, 64).to(dtype)  # 4 heads of q, 2 of k, 2 of v
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    k_cache, v_cache = kernel.alloc_kv_cache(1, 2, 16, 2, 64, dtype)
    rows = torch.arange(20, dtype=torch.int32)
    kernel.write_kv(k, v, k_cache[0], v_cache[0], rows, rows.long())
    indptr, context = torch.tensor([0, 20]), torch.tensor([20])
    table = torch.tensor([[0, 1]])
    out = kernel.paged_attention(q, k_cache[0], v_cache[0], indptr, context, table, 0.125)
    assert_close(out, dense_attention(q, k, v, 0.125), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_goes_into_out(kernel: CpuAttention, dtype: torch.dtype) -> None:
    problem = paged_problem(kernel, dtype, lens=((1, 20), (3, 9)))
    out = torch.full_like(problem.q, math.nan)
    assert problem.run(kernel, out) is out
    assert torch.equal(out, problem.run(kernel))


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_and_threads_do_not_change_a_bit(cpp: CpuAttention, dtype: torch.dtype) -> None:
    problem = paged_problem(cpp, dtype)
    torch.set_num_threads(2)
    together = problem.run(cpp)
    torch.set_num_threads(1)
    bounds = problem.q_indptr.tolist()
    for s, (count, _) in enumerate(MIXED):
        rows = slice(bounds[s], bounds[s + 1])
        alone = cpp.paged_attention(
            problem.q[rows],
            problem.k_cache[0],
            problem.v_cache[0],
            torch.tensor([0, count]),
            problem.context_len[s : s + 1],
            problem.page_table[s : s + 1],
            problem.scale,
        )
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_batch_gives_an_empty_result(kernel: CpuAttention, dtype: torch.dtype) -> None:
    problem = paged_problem(kernel, dtype, lens=((0, 0),))
    assert problem.run(kernel).shape == (0, 4, 64)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.float64])
@pytest.mark.parametrize("page_size", [1, 2, 8, 12, 16, 32])
@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_what_is_written_is_read_and_nothing_else_moves(
    kernel: CpuAttention, dtype: torch.dtype, page_size: int, head_dim: int
) -> None:
    torch.manual_seed(0)
    k_cache, v_cache = kernel.alloc_kv_cache(2, 96 // page_size, page_size, 3, head_dim, dtype)
    k_cache.fill_(7.0)
    v_cache.fill_(8.0)
    k, v = (torch.randn(30, 3, head_dim).to(dtype) for _ in range(2))
    slots = torch.randperm(96)
    written, rest = slots[:40], slots[40:]
    token_idx = torch.randint(0, 30, (40,), dtype=torch.int32)  # some into several slots
    kernel.write_kv(k, v, k_cache[1], v_cache[1], token_idx, written)
    k_read, v_read = kernel.read_kv(k_cache[1], v_cache[1], written)
    assert torch.equal(k_read, k[token_idx.long()])
    assert torch.equal(v_read, v[token_idx.long()])
    k_rest, v_rest = kernel.read_kv(k_cache[1], v_cache[1], rest)
    assert bool((k_rest == 7).all() and (v_rest == 8).all())
    assert bool((k_cache[0] == 7).all() and (v_cache[0] == 8).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_are_copied_in_every_layer(kernel: CpuAttention, dtype: torch.dtype) -> None:
    k_cache, v_cache = kernel.alloc_kv_cache(3, 9, 16, 2, 64, dtype)
    k_cache.copy_(torch.randn(k_cache.shape))
    v_cache.copy_(torch.randn(v_cache.shape))
    before = k_cache.clone(), v_cache.clone()
    src, dst = torch.tensor([4, 0, 4]).int(), torch.tensor([1, 8, 2]).int()
    kernel.copy_pages(k_cache, v_cache, src, dst)
    wanted = torch.tensor([0, 4, 4, 3, 4, 5, 6, 7, 0])
    for cache, old in zip((k_cache, v_cache), before, strict=True):
        assert torch.equal(cache, old[:, wanted])


def test_both_backends_share_one_layout(cpp: CpuAttention) -> None:
    plain = CpuAttention("torch")
    for dtype in DTYPES:
        problem = paged_problem(cpp, dtype)
        assert_close(problem.run(plain), problem.expected(), TOLERANCE[dtype])


def test_shape_is_read_back_from_a_cache(kernel: CpuAttention) -> None:
    k_cache, _ = kernel.alloc_kv_cache(2, 5, 24, 3, 80, torch.bfloat16)
    assert k_cache.shape[:2] == (2, 5)
    assert KvShape.of(k_cache[0]) == KvShape(5, 24, 3, 80)


def test_misfits_are_refused(kernel: CpuAttention) -> None:
    problem = paged_problem(kernel, torch.float32, lens=((1, 20),))
    good = problem.context_len.clone()
    for wrong in (0, 1000):
        problem.context_len = torch.full_like(good, wrong)
        with pytest.raises(ValueError, match="context is shorter"):
            problem.run(kernel)
    problem.context_len = good
    with pytest.raises(ValueError, match="out must be"):
        problem.run(kernel, torch.empty(1, 4, 32))
    problem.q = problem.q.bfloat16()
    with pytest.raises(ValueError, match="q must be"):
        problem.run(kernel)
    with pytest.raises(ValueError, match="both source and destination"):
        kernel.copy_pages(
            problem.k_cache, problem.v_cache, torch.tensor([0, 1]), torch.tensor([1, 2])
        )
    with pytest.raises(ValueError, match="multiple of 8"):
        kernel.alloc_kv_cache(1, 1, 16, 1, 12, torch.float32)


@pytest.fixture
def fresh_build() -> Iterator[None]:
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.mark.usefixtures("fresh_build")
def test_without_a_compiler_plain_torch_runs_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    kernel = CpuAttention()
    assert kernel.backend == "torch"
    assert "no C++ compiler found" in attention.backend_reason()
    problem = paged_problem(kernel, torch.float32, lens=((1, 40), (9, 20)))
    assert_close(problem.run(kernel), problem.expected(), 1e-5)
    with pytest.raises(InputError, match="no C\\+\\+ compiler found"):
        CpuAttention("cpp")


def test_environment_chooses_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.BACKEND_VARIABLE, "torch")
    assert CpuAttention().backend == "torch"
    assert attention.backend_reason() == "plain torch was asked for"
    monkeypatch.setenv(library.BACKEND_VARIABLE, "fortran")
    with pytest.raises(InputError, match="fortran"):
        CpuAttention()


@pytest.mark.usefixtures("fresh_build")
@pytest.mark.parametrize("target", ["-march=x86-64-v3", "-march=x86-64"])
def test_narrower_vectors_give_the_same(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    if CpuAttention().backend == "torch":
        pytest.skip(attention.backend_reason())
    if "avx2" not in build._cpu_features():
        pytest.skip("needs an x86-64 CPU with AVX2")
    library.library.cache_clear()
    monkeypatch.setattr(build, "EXTRA_FLAGS", (("-fopenmp", target),))
    kernel = CpuAttention("cpp")
    assert "AVX-512" not in kernel.backend_reason()
    for dtype in DTYPES:
        problem = paged_problem(kernel, dtype, heads=(5, 1, 80))
        problem.share([14, 15, 16], 1024)
        for shared in (None, problem.shared()):
            actual = problem.run(kernel, shared=shared)
            assert_close(actual, problem.expected(), TOLERANCE[dtype])
