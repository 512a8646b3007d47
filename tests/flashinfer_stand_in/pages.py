"""Functions of the page table, and writing into pages."""

import torch
from torch import Tensor

from flashinfer_stand_in.contract import check_cache, check_launch, check_pages, require


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    return (kv_indptr.diff() - 1).clamp(min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(
    append_indptr: Tensor, seq_lens: Tensor, nnz: int
) -> tuple[Tensor, Tensor]:
    """Of each appended entry its sequence, and its place there: they are the last ones of it."""
    batch = torch.repeat_interleave(torch.arange(len(seq_lens)), append_indptr.diff().long())
    from_end = append_indptr[batch + 1] - torch.arange(nnz)
    return batch.int(), (seq_lens[batch] - from_end).int()


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: tuple[Tensor, Tensor],
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    require(kv_layout == "NHD", "only NHD is used here")
    check_launch(append_key)
    k_cache, v_cache = paged_kv_cache
    page_size = k_cache.shape[1]
    check_pages(kv_indptr, kv_indices, kv_last_page_len, page_size)
    check_cache(paged_kv_cache, kv_indices, tuple(k_cache.shape[1:]))
    for ids in (batch_indices, positions):
        require(ids.dtype == torch.int32 and ids.shape == (len(append_key),), "int32, one for each")
    for rows in (append_key, append_value):
        require(rows.shape[1:] == k_cache.shape[2:], "rows are like those of the cache")
        require(rows.dtype == k_cache.dtype and rows.stride(-1) == 1, "in its dtype")
    require(
        0 <= int(batch_indices.min()) <= int(batch_indices.max()) < len(kv_last_page_len), "batch"
    )
    length = get_seq_lens(kv_indptr, kv_last_page_len, page_size)[batch_indices]
    require(
        bool(((positions >= 0) & (positions < length)).all()), "positions are in their sequences"
    )
    page = kv_indices[kv_indptr[batch_indices] + positions // page_size].long()
    offset = (positions % page_size).long()
    require(len(torch.unique(page * page_size + offset)) == len(page), "no entry is written twice")
    k_cache[page, offset] = append_key
    v_cache[page, offset] = append_value
