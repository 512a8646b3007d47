"""The attention wrappers: `plan` once, then `run` for each layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashinfer_stand_in.contract import (
    DTYPES,
    KV_DTYPES,
    check_cache,
    check_indptr,
    check_launch,
    check_pages,
    check_workspace,
    require,
)
from flashinfer_stand_in.pages import get_seq_lens

Cache = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Plan:
    """Entries of rows and pages, checked and copied: the caller may reuse its arrays."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_len: Tensor
    heads: tuple[int, int, int, int]  # q, kv, head_dim, page size
    causal: bool
    scale: float
    dtype: torch.dtype
    kv_dtype: torch.dtype

    @classmethod
    def of(
        cls,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        last_page_len: Tensor,
        *heads: int,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = torch.float16,
        kv_data_type: Any = None,
    ) -> "_Plan":
        num_heads, num_kv_heads, head_dim, page_size = heads
        require(num_heads % num_kv_heads == 0, "query heads are a multiple of KV heads")
        kv_dtypes = (None, q_data_type, *KV_DTYPES)
        require(q_data_type in DTYPES and kv_data_type in kv_dtypes, "dtypes it has kernels for")
        check_indptr("qo_indptr", qo_indptr)
        check_pages(kv_indptr, kv_indices, last_page_len, page_size)
        require(len(qo_indptr) == len(kv_indptr), "as many entries of rows as of pages")
        kv_len = get_seq_lens(kv_indptr, last_page_len, page_size)
        if causal:
            require(bool((kv_len >= qo_indptr.diff()).all()), "every row sees a token")
        return cls(
            *(ids.clone() for ids in (qo_indptr, kv_indptr, kv_indices)),
            kv_len,
            (num_heads, num_kv_heads, head_dim, page_size),
            causal,
            head_dim**-0.5 if sm_scale is None else sm_scale,
            q_data_type,
            kv_data_type or q_data_type,
        )

    def run(self, q: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Output [rows, Hq, D] and log-sum-exp to the base 2 [rows, Hq]; of no token: 0, −inf."""
        num_heads, num_kv_heads, head_dim, page_size = self.heads
        check_launch(q)
        fits = q.dtype == self.dtype and cache[0].dtype == self.kv_dtype
        require(fits, f"q is {self.dtype} and the cache {self.kv_dtype}, as planned")
        wanted = (int(self.qo_indptr[-1]), num_heads, head_dim)
        require(tuple(q.shape) == wanted, f"q is {wanted}, not {tuple(q.shape)}")
        require(q.stride(-1) == 1, "the last dim of q is contiguous")
        check_cache(cache, self.kv_indices, (page_size, num_kv_heads, head_dim))
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32)
        rows, pages = self.qo_indptr.tolist(), self.kv_indptr.tolist()
        for entry, length in enumerate(self.kv_len.tolist()):
            at = slice(rows[entry], rows[entry + 1])
            ids = self.kv_indices[pages[entry] : pages[entry + 1]].long()
            k, v = (part[ids].flatten(0, 1)[:length] for part in cache)
            out[at], lse[at] = self._entry(q[at], k, v)
        return out, lse

    def _entry(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Of one entry: rows q [n, Hq, D] over k, v [length, Hkv, D]."""
        num_rows, length, num_kv_heads = len(q), len(k), self.heads[1]
        if not length:
            return torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
        # heads of a group are rows over the same K and V
        rows = q.float().view(num_rows, num_kv_heads, -1, q.shape[-1]).permute(1, 2, 0, 3)
        keys, values = (x.float().transpose(0, 1)[:, None] for x in (k, v))
        scores = rows @ keys.transpose(-1, -2) * self.scale  # [Hkv, group, n, length]
        if self.causal and num_rows > 1:
            hidden = torch.ones(num_rows, length, dtype=torch.bool).triu(length - num_rows + 1)
            scores = scores.masked_fill(hidden, -torch.inf)
        lse = scores.logsumexp(-1)
        mixed = (scores - lse[..., None]).exp() @ values
        to_base_2 = lse.permute(2, 0, 1).reshape(q.shape[:2]) / math.log(2)
        return mixed.permute(2, 0, 1, 3).reshape(q.shape).to(q.dtype), to_base_2


def _merged(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """What attention over the tokens of all parts gives."""
    out, lse = (torch.stack(values) for values in zip(*parts, strict=True))
    share = torch.exp2(lse - lse.amax(dim=0)).nan_to_num()
    share = share / share.sum(dim=0).clamp(min=1e-30)
    return (out.float() * share[..., None]).sum(dim=0).to(out.dtype)


class _Wrapper:
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        check_workspace(float_workspace_buffer, kv_layout)
        self._planned: Any = None

    def _plan(self) -> Any:
        require(self._planned is not None, "plan comes before run")
        return self._planned


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """With `use_cuda_graph` it reads its index arrays from buffers, into which plans are copied."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        require(not float_workspace_buffer.any(), "the decode workspace begins with zeros")
        self._tensor_cores = use_tensor_cores
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        self._buffers = buffers if use_cuda_graph else None
        if use_cuda_graph:
            require(all(torch.is_tensor(buffer) for buffer in buffers), "a graph has buffers")
            require(len(buffers[0]) == len(buffers[2]) + 1, "indptr has an entry more")
            require(all(buffer.dtype == torch.int32 for buffer in buffers), "buffers are int32")

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        sm_scale: float | None = None,
    ) -> None:
        group = num_qo_heads // num_kv_heads
        require(self._tensor_cores or group in (1, 2, 3, 4, 8), f"groups of {group} without them")
        require(bool((indptr.diff() > 0).all()), "a decode reads a page at least")
        heads = (num_qo_heads, num_kv_heads, head_dim, page_size)
        how = {"sm_scale": sm_scale, "q_data_type": q_data_type, "kv_data_type": kv_data_type}
        self._planned = heads, how, (indptr, indices, last_page_len)
        if self._buffers is None:
            self._planned = _Plan.of(*self._arrays(), *heads, **how)
            return
        require(len(last_page_len) == len(self._buffers[2]), "a graph has one batch size")
        require(len(indices) <= len(self._buffers[1]), "room for all page numbers")
        for buffer, array in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
            buffer[: len(array)] = array

    def _arrays(self) -> tuple[Tensor, ...]:
        indptr, indices, last_page_len = self._buffers or self._planned[2]
        rows = torch.arange(len(indptr), dtype=torch.int32)
        return rows, indptr, indices[: int(indptr[-1])], last_page_len

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        planned = self._plan()
        if self._buffers is not None:
            heads, how, _ = planned
            planned = _Plan.of(*self._arrays(), *heads, **how)
        return planned.run(q, paged_kv_cache)[0]


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:
        self._planned = _Plan.of(
            *(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len),
            *(num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            causal=causal,
            sm_scale=sm_scale,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )

    def run(self, q: Tensor, paged_kv_cache: Cache, *, return_lse: bool = False) -> Any:
        out, lse = self._plan().run(q, paged_kv_cache)
        return (out, lse) if return_lse else out


class MultiLevelCascadeAttentionWrapper(_Wrapper):
    def __init__(
        self, num_levels: int, float_workspace_buffer: Tensor, kv_layout: str = "NHD"
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self._num_levels = num_levels

    def plan(
        self,
        qo_indptr_arr: list[Tensor],
        paged_kv_indptr_arr: list[Tensor],
        paged_kv_indices_arr: list[Tensor],
        paged_kv_last_page_len: list[Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        *,
        sm_scale: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:
        """The last level alone is causal."""
        arrays = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        require(all(len(array) == self._num_levels for array in arrays), "an array for each level")
        require(len({int(indptr[-1]) for indptr in qo_indptr_arr}) == 1, "levels have equal rows")
        self._planned = [
            _Plan.of(
                *level,
                *(num_qo_heads, num_kv_heads, head_dim, page_size),
                causal=causal and number == self._num_levels - 1,
                sm_scale=sm_scale,
                q_data_type=q_data_type,
                kv_data_type=kv_data_type,
            )
            for number, level in enumerate(zip(*arrays, strict=True))
        ]

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        return _merged([level.run(q, paged_kv_cache) for level in self._plan()])


class BatchPODWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self,
        qo_indptr_p: Tensor,
        kv_indptr_p: Tensor,
        kv_indices_p: Tensor,
        last_page_len_p: Tensor,
        qo_indptr_d: Tensor,
        kv_indptr_d: Tensor,
        kv_indices_d: Tensor,
        last_page_len_d: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        sm_scale: float | None = None,
    ) -> None:
        require(bool((qo_indptr_d.diff() == 1).all()), "a decode has one row")
        heads = (num_qo_heads, num_kv_heads, head_dim, page_size)
        how = {"sm_scale": sm_scale, "q_data_type": q_data_type, "kv_data_type": kv_data_type}
        prefills = (qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p)
        decodes = (qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d)
        # whether prefills are causal is said in `run`
        self._planned = [
            _Plan.of(*prefills, *heads, causal=False, **how),
            _Plan.of(*prefills, *heads, causal=True, **how),
            _Plan.of(*decodes, *heads, **how),
        ]

    def run(
        self,
        q_p: Tensor,
        paged_kv_cache_p: Cache,
        q_d: Tensor,
        paged_kv_cache_d: Cache,
        *,
        causal_p: bool = False,
    ) -> tuple[Tensor, Tensor]:
        *prefills, decodes = self._plan()
        out_p, _ = prefills[causal_p].run(q_p, paged_kv_cache_p)
        out_d, _ = decodes.run(q_d, paged_kv_cache_d)
        return out_p, out_d
