"""Paged attention of a mixed step in Triton: decodes, prefill chunks and shared prefixes.

A step is planned once and run for each layer. Caches have FlashInfer's NHD layout. Knows nothing
of requests, prefix trees or who owns a page.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blendrun.kernels.triton.attention_kernel import attend_tile
from blendrun.kernels.triton.attention_tiles import most_rows, plan_tiles, tile_shape
from blendrun.kernels.triton.launch import Launch
from blendrun.kernels.triton.merge_states import merge_launch
from blendrun.kernels.triton.page_index import DevicePageIndex
from blendrun.kernels.uploads import upload

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    index: DevicePageIndex,
    scale: float,
    *,
    causal: bool = True,
    chunk_len: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`plan_attention` and `AttentionPlan.run` of one layer, with its log-sum-exp."""
    plan = plan_attention(q, k_cache, index, causal=causal, chunk_len=chunk_len)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    plan.run(q, k_cache, v_cache, scale, out, lse, k_scale=k_scale, v_scale=v_scale)
    return out, lse


def plan_attention(
    q: Tensor,
    k_cache: Tensor,
    index: DevicePageIndex,
    *,
    causal: bool = True,
    chunk_len: int | None = None,
    arch: int | None = None,
) -> "AttentionPlan":
    """Tiles of a step, for all layers, on the device of q.

    Args:
        q: of any layer, for its shape, dtype and device; [T, Hq, D].
        k_cache: of any layer, for its shape; [P, page_size, Hkv, D].
        index: sequences of the step; all T rows of q belong to one.
        causal: query rows are the last tokens of their sequence, and row i of n sees the first
            kv_len - n + i + 1 tokens (none where that is negative). Else each row sees all.
        chunk_len: tokens; longer contexts are cut at its multiples, computed side by side and
            merged (`attention_tiles.chunk_len_for` finds one). None: not cut.
        arch: compute capability to plan for, as 90; None: that of q's device.

    Raises:
        ValueError: shapes or dtypes do not fit, see also `DevicePageIndex.kv_len`.
    """
    num_tokens, num_q_heads, head_dim = q.shape
    _, page_size, num_kv_heads, cache_dim = k_cache.shape
    if q.dtype not in DTYPES or head_dim != cache_dim or num_q_heads % num_kv_heads:
        raise ValueError(f"q {q.dtype} {list(q.shape)} does not fit caches {list(k_cache.shape)}")
    largest = most_rows(head_dim, q.dtype, arch or _arch_of(q.device))
    tiles = plan_tiles(index, page_size, num_q_heads // num_kv_heads, largest, chunk_len)
    if index.q_begin()[-1] != num_tokens:
        raise ValueError(f"qo_indptr ends at {index.q_begin()[-1]}, not at {num_tokens} rows of q")
    by_rows = {rows: upload(torch.from_numpy(own), q.device) for rows, own in tiles.by_rows.items()}
    merged = (tiles.merged_rows, tiles.merged_indptr)
    rows, indptr = (upload(torch.from_numpy(column), q.device) for column in merged)
    return AttentionPlan(
        q.shape, k_cache.shape, q.dtype, causal, index.kv_indices, by_rows, rows, indptr,
        tiles.num_states,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """The attention of one step, to be run for each layer. Tensors are int32, on the device."""

    q_shape: torch.Size  # [T, Hq, D]
    cache_shape: torch.Size  # [P, page_size, Hkv, D]
    dtype: torch.dtype  # of q
    causal: bool
    pages: Tensor
    tiles: dict[int, Tensor]  # [n, 9], by packed rows of each, see `attention_tiles.Tiles`
    merged_rows: Tensor  # [R]
    merged_indptr: Tensor  # [R + 1]
    num_states: int

    def run(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        scale: float,
        out: Tensor,
        lse: Tensor | None = None,
        *,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """Attention of one layer.

        Args:
            q: [T, Hq, D] float32, float16 or bfloat16; any strides but the last, which is 1.
            k_cache, v_cache: [P, page_size, Hkv, D] in the dtype of q or float8, with equal
                strides, the last 1; tokens of the sequences are written.
            scale: multiplies q . k before the natural exponential; positive.
            out: [T, Hq, D] to write into; any strides but the last, which is 1. Zeros for rows
                that see no token.
            lse: float32 [T, Hq] to write into, the last stride 1: log-sum-exp of the scores to
                base 2, as FlashInfer's; minus infinity for rows that see no token.
            k_scale, v_scale: what values of the caches are multiplied with.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        for launch in self.launches(
            q, k_cache, v_cache, scale, out, lse, k_scale=k_scale, v_scale=v_scale
        ):
            launch.run()

    def launches(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        scale: float,
        out: Tensor,
        lse: Tensor | None = None,
        *,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> list[Launch]:
        """What `run` runs, in this order."""
        self._check(q, k_cache, v_cache, out, lse)
        _, num_q_heads, head_dim = self.q_shape
        _, page_size, num_kv_heads, _ = self.cache_shape
        size = (self.num_states, num_q_heads, head_dim)
        state_values = torch.empty(size, dtype=torch.float32, device=q.device)
        state_lse = torch.empty(size[:2], dtype=torch.float32, device=q.device)
        args = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "pages": self.pages,
            "out": out,
            "lse": lse,
            "state_values": state_values,
            "state_lse": state_lse,
            "score_scale": scale * k_scale * math.log2(math.e),
            "v_scale": v_scale,
            "q_row_stride": q.stride(0),
            "q_head_stride": q.stride(1),
            "kv_page_stride": k_cache.stride(0),
            "kv_token_stride": k_cache.stride(1),
            "kv_head_stride": k_cache.stride(2),
            "out_row_stride": out.stride(0),
            "out_head_stride": out.stride(1),
            "lse_row_stride": 0 if lse is None else lse.stride(0),
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": num_q_heads // num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_D": max(16, 1 << (head_dim - 1).bit_length()),
            "PAGE_SIZE": page_size,
            "CAUSAL": self.causal,
        }
        launches = []
        for rows, tiles in self.tiles.items():
            shape = tile_shape(rows, head_dim, self.dtype, k_cache.dtype)
            blocks = {"BLOCK_M": rows, "BLOCK_N": shape.tokens, "NUM_STAGES": shape.num_stages}
            grid = (len(tiles) * num_kv_heads,)
            tile_args = {**args, "tiles": tiles, **blocks}
            launches.append(Launch(attend_tile, grid, tile_args, shape.num_warps, shape.num_stages))
        if self.num_states:
            states = (state_values, state_lse, self.merged_indptr)
            launches.append(merge_launch(*states, self.merged_rows, out, lse))
        return launches

    def _check(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, lse: Tensor | None
    ) -> None:
        if q.shape != self.q_shape or q.dtype != self.dtype or q.stride(-1) != 1:
            wanted = f"{self.dtype} {list(self.q_shape)}"
            raise ValueError(f"q must be {wanted} with a contiguous last dim")
        same = k_cache.stride() == v_cache.stride() and k_cache.dtype == v_cache.dtype
        fits = k_cache.shape == v_cache.shape == self.cache_shape and k_cache.stride(-1) == 1
        if not (same and fits and (k_cache.dtype == q.dtype or k_cache.dtype.itemsize == 1)):
            raise ValueError("the caches are not like the one of the plan, or not like each other")
        if out.shape != q.shape or out.dtype != q.dtype or out.stride(-1) != 1:
            raise ValueError("out must have the shape and dtype of q, its last dim contiguous")
        if lse is not None and (
            lse.shape != q.shape[:2] or lse.dtype != torch.float32 or lse.stride(-1) != 1
        ):
            raise ValueError("lse must be float32 [T, Hq] with a contiguous last dim")


def _arch_of(device: torch.device) -> int:
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
