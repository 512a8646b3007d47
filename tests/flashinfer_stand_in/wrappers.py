"""The attention wrappers: `plan` once, then `run` for each layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashinfer_stand_in.contract import check_workspace, require
from flashinfer_stand_in.plan import Cache, Plan


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
            self._planned = Plan.of(*self._arrays(), *heads, **how)
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
            planned = Plan.of(*self._arrays(), *heads, **how)
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
        self._planned = Plan.of(
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
            Plan.of(
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
            Plan.of(*prefills, *heads, causal=False, **how),
            Plan.of(*prefills, *heads, causal=True, **how),
            Plan.of(*decodes, *heads, **how),
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
