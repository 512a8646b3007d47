"""Paged attention through FlashInfer's wrappers, planned once per step and run once per layer.

`kernels.paged` makes the index arrays and divides a step among the wrappers. Knows nothing of
requests, prefix caches or who owns a page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from blendrun.kernels.cpu.shared_prefixes import COST_LEN, SharedPrefixes
from blendrun.kernels.flashinfer.library import DECODE_GROUPS, FlashInfer
from blendrun.kernels.flashinfer.plan_arrays import plan_arrays
from blendrun.kernels.flashinfer.static_decodes import FlashInferDecodes
from blendrun.kernels.flashinfer.writes import FlashInferWrites, whole_cache_index
from blendrun.kernels.marks import Mark
from blendrun.kernels.paged.cascade import Cascade
from blendrun.kernels.paged.nhd_pages import NhdPages
from blendrun.kernels.paged.page_index import PageIndex
from blendrun.kernels.paged.step_split import Int64, StepSplit, as_rows

LAYOUT = "NHD"
WORKSPACE_BYTES = 128 << 20  # of each wrapper, as its documentation recommends
_LEAST_TENSOR_CORE_GROUP = 4  # query heads per KV head from which decodes use tensor cores
_INDICES_PER_PAGE = 2  # of a pool, in static decodes: pages can be shared

Launch = Callable[[Tensor, tuple[Tensor, Tensor], Tensor], None]  # q, caches of a layer, out


class FlashInferAttention(NhdPages):
    """See `engine.paged_attention.PagedAttention`. Holds the wrappers and their workspaces.

    A wrapper has one plan at a time. Each part of a step has wrappers of its own, so that the
    latest plans of all parts can be run, also at the same time.
    """

    backend: ClassVar[str] = "flashinfer"

    def __init__(
        self,
        library: FlashInfer,
        device: torch.device,
        reason: str,
        *,
        fused: bool = False,
        prefix_cost_len: int = COST_LEN,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """
        Args:
            reason: why this path was taken, in one line.
            fused: prefill chunks and decodes of a step in one launch (POD-Attention).
            prefix_cost_len, kv_dtype: see `NhdPages`.
        """
        super().__init__(device, reason, prefix_cost_len, kv_dtype)
        self._library, self._fused = library, fused
        self._wrappers: dict[tuple[int, str, int], Any] = {}
        self._cache_index: tuple[Tensor, ...] = ()
        self._static: tuple[Tensor, Tensor] | None = None  # workspace, and room for page numbers
        self._num_planned: dict[int, int] = {}  # by part
        self._copied: dict[int, Mark] = {}  # by part, behind the copies of its latest plan

    def alloc_kv_cache(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """K and V [num_layers, num_pages, page_size, num_kv_heads, head_dim], not set."""
        self._cache_index = whole_cache_index(num_pages, page_size, self.device)
        self._static = None
        return super().alloc_kv_cache(
            num_layers, num_pages, page_size, num_kv_heads, head_dim, dtype
        )

    def plan_writes(self, token_idx: Tensor, slots: Tensor) -> FlashInferWrites:
        """For the pages that were allocated last."""
        return FlashInferWrites(self._library, token_idx, slots, self._cache_index)

    def plan(
        self,
        k_cache: Tensor,
        num_heads: int,
        q_indptr: Tensor,
        context_len: Tensor,
        page_table: Tensor,
        scale: float,
        shared: SharedPrefixes | None = None,
        *,
        may_split: bool = True,
        part: int = 0,
    ) -> "FlashInferPlan":
        """As `CpuAttention.plan`; index tensors are on the CPU. `may_split` has no effect."""
        del may_split
        _, page_size, num_kv_heads, head_dim = k_cache.shape
        heads = (num_heads, num_kv_heads, head_dim, page_size)
        how = self._how(k_cache, scale)
        split = StepSplit.of(
            q_indptr.numpy(), context_len.numpy(), page_table.numpy(), page_size, shared
        )
        self._wait_for_copies(part)
        launches: list[Launch] = []
        if split.cascade is not None:
            launches.append(self._cascade(part, split.cascade, split.cascade_rows, heads, how))
        decodes, prefills = split.decodes, split.prefills
        if self._fused and decodes is not None and prefills is not None:
            both = (prefills, split.prefill_rows, decodes, split.decode_rows)
            launches.append(self._pod(part, *both, heads, how))
        else:
            if decodes is not None:
                launches.append(self._decodes(part, decodes, split.decode_rows, heads, how))
            if prefills is not None:
                launches.append(self._prefills(part, prefills, split.prefill_rows, heads, how))
        self._copied[part] = Mark(self.device)
        number = self._num_planned[part] = self._num_planned.get(part, 0) + 1
        return FlashInferPlan(self, part, number, tuple(launches))

    def static_decodes(
        self, k_cache: Tensor, num_heads: int, num_seqs: int, scale: float
    ) -> FlashInferDecodes:
        """See `engine.graphs.StaticAttention`; for the pages that were allocated last."""
        num_pages, page_size, num_kv_heads, head_dim = k_cache.shape
        if self._static is None:
            workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)
            most = _INDICES_PER_PAGE * num_pages
            indices = torch.zeros(most, dtype=torch.int32, device=self.device)
            self._static = workspace, indices
        heads = (num_heads, num_kv_heads, head_dim, page_size)
        how, tensor_cores = self._how(k_cache, scale), _takes_tensor_cores(heads)
        args = (*self._static, self._cache_index, num_seqs, heads, how)
        return FlashInferDecodes(self._library, LAYOUT, *args, tensor_cores=tensor_cores)

    def _how(self, k_cache: Tensor, scale: float) -> dict[str, Any]:
        dtypes = {"q_data_type": self.query_dtype(k_cache), "kv_data_type": k_cache.dtype}
        return {"sm_scale": scale, **dtypes}

    def _wait_for_copies(self, part: int) -> None:
        """A wrapper copies its plans from one place on the CPU, before the step that they are for.

        Where steps are launched ahead, the next one's would come to lie over it. The device is
        about to begin that step by then.
        """
        if part in self._copied:
            self._copied[part].wait()

    def is_latest(self, part: int, number: int) -> bool:
        """Whether nothing was planned for this part after the plan with this number."""
        return number == self._num_planned[part]

    def _wrapper(self, part: int, kind: str, number: int, make: Callable[[Tensor], Any]) -> Any:
        found = self._wrappers.get((part, kind, number))
        if found is None:
            # zeros: the decode wrapper asks for them
            workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)
            found = self._wrappers[part, kind, number] = make(workspace)
        return found

    def _decodes(
        self, part: int, index: PageIndex, rows: Int64, heads: tuple[int, ...], how: dict[str, Any]
    ) -> Launch:
        tensor_cores = _takes_tensor_cores(heads)
        wrapper = self._wrapper(
            part,
            "decode",
            int(tensor_cores),
            lambda workspace: self._library.BatchDecodeWithPagedKVCacheWrapper(
                workspace, LAYOUT, use_tensor_cores=tensor_cores
            ),
        )
        wrapper.plan(*plan_arrays(index, self.device)[1:], *heads, **how)
        return self._launch(wrapper, rows)

    def _prefills(
        self, part: int, index: PageIndex, rows: Int64, heads: tuple[int, ...], how: dict[str, Any]
    ) -> Launch:
        wrapper = self._wrapper(
            part,
            "prefill",
            0,
            lambda workspace: self._library.BatchPrefillWithPagedKVCacheWrapper(workspace, LAYOUT),
        )
        wrapper.plan(*plan_arrays(index, self.device), *heads, causal=True, **how)
        return self._launch(wrapper, rows)

    def _cascade(
        self, part: int, cascade: Cascade, rows: Int64, heads: tuple[int, ...], how: dict[str, Any]
    ) -> Launch:
        num_levels = len(cascade.levels)
        wrapper = self._wrapper(
            part,
            "cascade",
            num_levels,
            lambda workspace: self._library.MultiLevelCascadeAttentionWrapper(
                num_levels, workspace, LAYOUT
            ),
        )
        arrays = zip(*(plan_arrays(level, self.device) for level in cascade.levels), strict=True)
        wrapper.plan(*map(list, arrays), *heads, causal=True, **how)
        return self._launch(wrapper, rows)

    def _launch(self, wrapper: Any, rows: Int64) -> Launch:
        chosen = as_rows(rows, self.device)

        def run(q: Tensor, caches: tuple[Tensor, Tensor], out: Tensor) -> None:
            out[chosen] = wrapper.run(q[chosen], caches)

        return run

    def _pod(
        self,
        part: int,
        prefills: PageIndex,
        prefill_rows: Int64,
        decodes: PageIndex,
        decode_rows: Int64,
        heads: tuple[int, ...],
        how: dict[str, Any],
    ) -> Launch:
        wrapper = self._wrapper(
            part,
            "pod",
            0,
            lambda workspace: self._library.BatchPODWithPagedKVCacheWrapper(workspace, LAYOUT),
        )
        arrays = (*plan_arrays(prefills, self.device), *plan_arrays(decodes, self.device))
        wrapper.plan(*arrays, *heads, **how)
        prefill, decode = as_rows(prefill_rows, self.device), as_rows(decode_rows, self.device)

        def run(q: Tensor, caches: tuple[Tensor, Tensor], out: Tensor) -> None:
            out[prefill], out[decode] = wrapper.run(
                q[prefill], caches, q[decode], caches, causal_p=True
            )

        return run


@dataclass(frozen=True, slots=True, eq=False)
class FlashInferPlan:
    """The attention of one step, to be run for each layer."""

    attention: FlashInferAttention
    part: int
    number: int
    launches: tuple[Launch, ...]  # together they write all rows

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Attention of one layer, [T, Hq, D].

        Args:
            q: [T, Hq, D] in the model's dtype.
            k_cache, v_cache: one layer; K and V of every token in a context are written.

        Raises:
            ValueError: another step was planned since.
        """
        if not self.attention.is_latest(self.part, self.number):
            raise ValueError("another step was planned since: its wrappers have that plan now")
        q = q.contiguous()
        out = torch.empty_like(q)
        for launch in self.launches:
            launch(q, (k_cache, v_cache), out)
        return out


def _takes_tensor_cores(heads: tuple[int, ...]) -> bool:
    """Whether decodes with these heads use them."""
    group = heads[0] // heads[1]
    return group >= _LEAST_TENSOR_CORE_GROUP or group not in DECODE_GROUPS
