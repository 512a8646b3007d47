"""The stand-in for FlashInfer against examples of its documentation, worked by hand."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

import flashinfer_stand_in as flashinfer
from flashinfer_stand_in import ContractError

WORKSPACE = torch.zeros(128 << 20, dtype=torch.uint8)
HOW: dict[str, Any] = {"sm_scale": 1.0, "q_data_type": torch.float32}
ONE_HEAD = (1, 1, 2, 2)  # two dims, two tokens to a page
# Scores of q = (1, 0) are 0, ln 3, ln 4: weights 1 : 3 : 4. Values are 0, 4, 8.
KEYS = [0.0, math.log(3), math.log(4)]
TWO, THREE = 3.0, 5.5  # (1·0 + 3·4) / 4, (1·0 + 3·4 + 4·8) / 8
Q = torch.tensor([[[1.0, 0.0]]])


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def caches() -> tuple[Tensor, Tensor]:
    """Page 2 has the first two tokens, page 0 the third; nobody may read the rest."""
    k, v = torch.full((2, 4, 2, 1, 2), math.nan)
    for token, (page, place) in enumerate(((2, 0), (2, 1), (0, 0))):
        k[page, place, 0] = torch.tensor([KEYS[token], 7.0])
        v[page, place, 0] = torch.tensor([4.0 * token, 1.0])
    return k, v


def first(out: Tensor) -> list[float]:
    assert torch.allclose(out[..., 1], torch.ones(()))  # weights add up to 1
    return pytest.approx(out[:, 0, 0].tolist())


def decoded(*index: Tensor) -> Tensor:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD")
    wrapper.plan(*index, *ONE_HEAD, **HOW)
    return wrapper.run(Q.repeat(len(index[-1]), 1, 1), caches())


def test_decode_reads_whole_pages_and_a_part_of_the_last():
    assert first(decoded(int32(0, 1, 3), int32(2, 2, 0), int32(2, 1))) == [TWO, THREE]


def test_with_a_graph_plans_are_copied_into_buffers_from_which_it_reads():
    buffers = (int32(0, 0, 0), int32(0, 0, 0, 0), int32(0, 0))
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", True, False, *buffers)
    wrapper.plan(int32(0, 1, 3), int32(2, 2, 0), int32(2, 1), *ONE_HEAD, **HOW)
    assert [buffer.tolist() for buffer in buffers] == [[0, 1, 3], [2, 2, 0, 0], [2, 1]]
    q = Q.repeat(2, 1, 1)
    assert first(wrapper.run(q, caches())) == [TWO, THREE]
    buffers[0].copy_(int32(0, 2, 3))  # as if the other one were the longer
    buffers[1][:3] = int32(2, 0, 2)
    buffers[2].copy_(int32(1, 2))
    assert first(wrapper.run(q, caches())) == [THREE, TWO]
    with pytest.raises(ContractError, match="one batch size"):
        wrapper.plan(int32(0, 1), int32(2), int32(2), *ONE_HEAD, **HOW)
    with pytest.raises(ContractError, match="room"):
        wrapper.plan(int32(0, 3, 5), int32(2, 2, 2, 2, 2), int32(2, 2), *ONE_HEAD, **HOW)


def test_causal_rows_are_the_last_ones_and_lse_is_to_the_base_2():
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    index = (int32(0, 2), int32(0, 2), int32(2, 0), int32(1))
    wrapper.plan(*index, *ONE_HEAD, causal=True, **HOW)
    out, lse = wrapper.run(Q.repeat(2, 1, 1), caches(), return_lse=True)
    assert first(out) == [TWO, THREE]
    assert lse.tolist() == [[pytest.approx(2.0)], [pytest.approx(3.0)]]  # of 1 + 3, 1 + 3 + 4
    wrapper.plan(*index, *ONE_HEAD, **HOW)
    assert first(wrapper.run(Q.repeat(2, 1, 1), caches())) == [THREE, THREE]


def test_the_scale_is_one_over_the_root_of_head_dim_where_none_is_given():
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(int32(0, 1), int32(2), int32(2), *ONE_HEAD, q_data_type=torch.float32)
    assert first(wrapper.run(Q * math.sqrt(2), caches())) == [TWO]


def test_levels_of_a_cascade_merge_into_attention_over_all_of_them():
    """The second row has nothing on the first level."""
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE, "NHD")
    levels = (
        (int32(0, 1, 2), int32(0, 1, 2)),
        (int32(0, 1, 1), int32(0, 1, 2)),
        (int32(2), int32(0, 2)),
        (int32(2, 0), int32(1, 2)),
    )
    wrapper.plan(*map(list, levels), *ONE_HEAD, causal=True, **HOW)
    assert first(wrapper.run(Q.repeat(2, 1, 1), caches())) == [THREE, TWO]


def test_pod_gives_prefills_and_decodes():
    wrapper = flashinfer.BatchPODWithPagedKVCacheWrapper(WORKSPACE, "NHD")
    prefill = (int32(0, 2), int32(0, 2), int32(2, 0), int32(1))
    decode = (int32(0, 1), int32(0, 1), int32(2), int32(2))
    wrapper.plan(*prefill, *decode, *ONE_HEAD, **HOW)
    out_p, out_d = wrapper.run(Q.repeat(2, 1, 1), caches(), Q, caches(), causal_p=True)
    assert first(out_p) == [TWO, THREE]
    assert first(out_d) == [TWO]


def test_the_documented_append_example():
    """Sequences of 45, 8, 25 and 22 tokens on eight pages."""
    lengths = int32(45, 8, 25, 22)
    append_indptr, kv_indptr = int32(0, 45, 53, 78, 100), int32(0, 3, 4, 6, 8)
    last = int32(13, 8, 9, 6)
    assert flashinfer.get_seq_lens(kv_indptr, last, 16).tolist() == lengths.tolist()
    batch, positions = flashinfer.get_batch_indices_positions(append_indptr, lengths, 100)
    assert batch.tolist() == [0] * 45 + [1] * 8 + [2] * 25 + [3] * 22
    assert positions.tolist() == [*range(45), *range(8), *range(25), *range(22)]
    k = torch.arange(100.0).view(100, 1, 1).repeat(1, 2, 4)
    pages = torch.full((1000, 16, 2, 4), -1.0), torch.full((1000, 16, 2, 4), -1.0)
    indices = torch.arange(8, dtype=torch.int32)
    flashinfer.append_paged_kv_cache(k, -k, batch, positions, pages, indices, kv_indptr, last)
    ids = pages[0][:, :, 0, 0]
    assert ids[2].tolist() == [*range(32, 45), -1, -1, -1]
    assert ids[3].tolist() == [*range(45, 53), *[-1] * 8]
    assert ids[5].tolist() == [*range(69, 78), *[-1] * 7]
    assert ids[7].tolist() == [*range(94, 100), *[-1] * 10]
    assert pages[1][7, 5].tolist() == [[-99.0] * 4] * 2
    assert (ids[8:] == -1).all()


def test_the_documented_positions_example():
    """Of sequences of five tokens the last 1, 2, 3 and 4 are appended."""
    batch, positions = flashinfer.get_batch_indices_positions(
        int32(0, 1, 3, 6, 10), int32(5, 5, 5, 5), 10
    )
    assert batch.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert positions.tolist() == [4, 3, 4, 2, 3, 4, 1, 2, 3, 4]


def test_norms_add_in_place_and_divide_by_the_root_mean_square():
    x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    weight = torch.tensor([1.0, 2.0])
    flashinfer.fused_add_rmsnorm(x, residual, weight, eps=0.0)
    assert residual.tolist() == [[3.0, 4.0]]
    normed = [3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]
    assert x[0].tolist() == pytest.approx(normed)
    assert flashinfer.rmsnorm(residual, weight, 0.0)[0].tolist() == pytest.approx(normed)


def test_a_quarter_turn_takes_pairs_half_a_head_apart():
    angles = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])  # none, a quarter
    q = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2)
    k = torch.tensor([[5.0, 6.0, 7.0, 8.0]] * 2)
    flashinfer.apply_rope_with_cos_sin_cache_inplace(int32(1, 0), q, k, 4, angles)
    assert q.tolist() == [[-3.0, -4.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]
    assert k.tolist() == [[-7.0, -8.0, 5.0, 6.0], [5.0, 6.0, 7.0, 8.0]]


def test_silu_of_the_first_half_times_the_second():
    """silu(ln 3) = 3/4 ln 3."""
    made = flashinfer.silu_and_mul(torch.tensor([[math.log(3), 0.0, 4.0, 5.0]]))
    assert made[0].tolist() == pytest.approx([3 * math.log(3), 0.0])


@pytest.mark.parametrize(
    "index",
    [
        (torch.tensor([0, 1]), int32(2), int32(2)),
        (int32(1, 1), int32(2), int32(2)),
        (int32(0, 2), int32(2), int32(2)),
        (int32(0, 2, 1), int32(2), int32(2, 2)),
        (int32(0, 1), int32(2), int32(3)),
        (int32(0, 1), int32(2), int32(0)),
        (int32(0, 1), int32(4), int32(2)),
        (int32(0, 1), int32(-1), int32(2)),
        (int32(0, 1), int32(2), int32(2, 2)),
    ],
    ids=[
        "int64",
        "not from 0",
        "more pages than ids",
        "falls",
        "last page too long",
        "last page empty",
        "page behind the cache",
        "page before the cache",
        "a last page too many",
    ],
)
def test_a_breach_of_the_contract_is_found(index: tuple[Tensor, Tensor, Tensor]):
    with pytest.raises(ContractError):
        decoded(*index)


def row_by_row(q: Tensor, k: Tensor, v: Tensor, seen: int) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp to the base 2 of q [Hq, D] over the first `seen` tokens."""
    heads = q.view(k.shape[1], -1, q.shape[1])
    scores = heads @ k[:seen].permute(1, 2, 0)
    mixed = scores.softmax(-1) @ v[:seen].transpose(0, 1)
    return mixed.flatten(0, 1), scores.logsumexp(-1).flatten() / math.log(2)


@pytest.mark.parametrize("causal", [False, True])
def test_entries_of_all_sizes_together_give_what_rows_give_alone(causal: bool):
    random = torch.Generator().manual_seed(0)
    num_rows = (1, 2, 1, 1, 3, 1, 2, 1, 0)
    kv_len = (5, 9, 6, 5 if causal else 0, 30, 7, 9, 6, 4)
    page_size, counts = 4, [-(-length // 4) for length in kv_len]
    caches = tuple(torch.randn(20, page_size, 2, 8, generator=random) for _ in "kv")
    pages = torch.randint(20, (sum(counts),), generator=random, dtype=torch.int32)
    last = [(length - 1) % page_size + 1 if length else 0 for length in kv_len]
    q = torch.randn(sum(num_rows), 6, 8, generator=random)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    indptr = (int32(0, *accumulate(of)) for of in (num_rows, counts))
    wrapper.plan(*indptr, pages, int32(*last), 6, 2, 8, page_size, causal=causal, **HOW)
    found = wrapper.run(q, caches, return_lse=True)
    rows = iter(q)
    alone = []
    for count, length, ids in zip(num_rows, kv_len, pages.split(counts), strict=True):
        k, v = (cache[ids.long()].flatten(0, 1) for cache in caches)
        last_seen = range(length - count + 1, length + 1) if causal else [length] * count
        alone += [row_by_row(next(rows), k, v, seen) for seen in last_seen]
    for values, expected in zip(found, map(torch.stack, zip(*alone, strict=True)), strict=True):
        torch.testing.assert_close(values, expected)
