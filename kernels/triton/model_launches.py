"""The launches that models make: every kernel with the shapes it is compiled for.

Made by the wrappers themselves, from tensors on the `meta` device, so what is compiled ahead of
time is what an engine would launch.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.triton.argmax import argmax_launches
from blendrun.kernels.triton.attention import plan_attention
from blendrun.kernels.triton.draw import DrawColumns, draw_launches
from blendrun.kernels.triton.launch import Launch
from blendrun.kernels.triton.merge_states import merge_launch
from blendrun.kernels.triton.page_index import DevicePageIndex
from blendrun.kernels.triton.rms_norm import norm_launch
from blendrun.kernels.triton.rotary import rotary_launch
from blendrun.kernels.triton.silu_mul import silu_launch

_NUM_PAGES = 4096
_PAGE_SIZE = 16
_FP8_FROM = 89  # compute capability
# (query tokens, context): tiles of 16 and 64 rows, and of 16 and 128
_STEPS = (((1, 3000), (8, 3000)), ((1, 3000), (300, 3000)))


class Model(NamedTuple):
    """What kernels see of a model."""

    name: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    width: int  # of the residual stream
    mlp_width: int
    vocab: int
    dtypes: tuple[torch.dtype, ...]
    head_norms: bool = False


MODELS = (
    Model("llama-3.1-8b", 32, 8, 128, 4096, 14336, 128256, (torch.bfloat16, torch.float16)),
    Model("qwen2.5-7b", 28, 4, 128, 3584, 18944, 152064, (torch.bfloat16,)),
    Model("qwen3-32b", 64, 8, 128, 5120, 25600, 151936, (torch.bfloat16,), True),
    Model("smollm2-135m", 9, 3, 64, 576, 1536, 49152, (torch.bfloat16, torch.float32)),
    Model("head-dim-256", 16, 8, 256, 3584, 14336, 256000, (torch.bfloat16,)),
)


def model_launches(arch: int) -> dict[str, Launch]:
    """By name, for compute capability `arch`, as 90."""
    made = {}
    for model in MODELS:
        for dtype in model.dtypes:
            caches = {"": dtype}
            if dtype == torch.bfloat16 and arch >= _FP8_FROM:
                caches["fp8 KV "] = torch.float8_e4m3fn
            prefix = f"{model.name} {str(dtype).removeprefix('torch.')}"
            for kind, cache_dtype in caches.items():
                for name, launch in _attention(model, dtype, cache_dtype, arch):
                    made[f"{prefix} {kind}{name}"] = launch
                made[f"{prefix} {kind}rotary"] = _rotary(model, dtype, cache_dtype)
            for name, launch in _others(model, dtype):
                made[f"{prefix} {name}"] = launch
    return made


def _attention(
    model: Model, dtype: torch.dtype, cache_dtype: torch.dtype, arch: int
) -> Iterator[tuple[str, Launch]]:
    for causal in (True, False):
        for step in _STEPS:
            index = _index(step)
            num_tokens = int(index.qo_indptr[-1])
            q = _empty(num_tokens, model.num_q_heads, model.head_dim, dtype=dtype)
            cache = _cache(model, cache_dtype)
            plan = plan_attention(q, cache, index, causal=causal, chunk_len=512, arch=arch)
            lse = _empty(num_tokens, model.num_q_heads, dtype=torch.float32)
            for launch in plan.launches(q, cache, cache, 0.1, torch.empty_like(q), lse):
                rows = launch.args.get("BLOCK_M")
                kind = "causal" if causal else "prefix"
                yield f"attention {kind} rows={rows}" if rows else "merge of chunks", launch


def _rotary(model: Model, dtype: torch.dtype, cache_dtype: torch.dtype) -> Launch:
    num_tokens, heads = 64, (model.num_q_heads, model.num_kv_heads)
    qkv = _empty(num_tokens, heads[0] + 2 * heads[1], model.head_dim, dtype=dtype)
    norm = _empty(model.head_dim, dtype=dtype) if model.head_norms else None
    angles = _empty(num_tokens, model.head_dim // 2, dtype=torch.float32)
    token_idx, slots = (_empty(num_tokens, dtype=kind) for kind in (torch.int32, torch.int64))
    q, k, v = qkv.split([heads[0], heads[1], heads[1]], dim=1)
    rotation, cache = Rotation(angles, angles, norm, norm, 1e-6), _cache(model, cache_dtype)
    return rotary_launch(q, k, v, rotation, cache, cache, token_idx, slots)


def _others(model: Model, dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    num_tokens, heads = 64, (model.num_q_heads, model.num_kv_heads)
    hidden = _empty(num_tokens, model.width, dtype=dtype)
    weight = _empty(model.width, dtype=dtype)
    for name, branch in (("norm", None), ("residual norm", hidden)):
        yield name, norm_launch(hidden, branch, weight, 1e-5, torch.empty_like(hidden))
    gate_up = _empty(num_tokens, 2 * model.mlp_width, dtype=dtype)
    yield "silu mul", silu_launch(gate_up, _empty(num_tokens, model.mlp_width, dtype=dtype))
    states = _empty(2 * num_tokens, heads[0], model.head_dim, dtype=dtype)
    lse = _empty(2 * num_tokens, heads[0], dtype=torch.float32)
    indptr = _empty(num_tokens + 1, dtype=torch.int32)
    out = (_empty(num_tokens, heads[0], model.head_dim, dtype=dtype), lse[:num_tokens])
    yield "merge of levels", merge_launch(states, lse, indptr, None, *out)
    yield from _sampling(_empty(num_tokens, model.vocab, dtype=dtype))


def _sampling(logits: Tensor) -> Iterator[tuple[str, Launch]]:
    num_rows = logits.shape[0]
    best = _empty(num_rows, dtype=torch.int64)
    greedy = argmax_launches(logits, best, _empty(num_rows, dtype=torch.bool))
    floats = (_empty(num_rows, dtype=torch.float32) for _ in range(3))
    kinds = (torch.int64, torch.int64, torch.int32, torch.int64)
    columns = DrawColumns(*floats, *(_empty(num_rows, dtype=kind) for kind in kinds))
    drawn = draw_launches(logits, best, _empty(num_rows, dtype=torch.int32), columns, best)
    for launch in (*greedy, *drawn):
        yield launch.kernel.__name__.replace("_", " "), launch


def _index(step: tuple[tuple[int, int], ...]) -> DevicePageIndex:
    bounds, pages = [0], [0]
    for num_tokens, context in step:
        bounds.append(bounds[-1] + num_tokens)
        pages.append(pages[-1] - (-context // _PAGE_SIZE))
    last = [(context - 1) % _PAGE_SIZE + 1 for _, context in step]
    on_cpu = (torch.tensor(column, dtype=torch.int32) for column in (bounds, pages, last))
    qo_indptr, kv_indptr, last_page_len = on_cpu
    indices = _empty(pages[-1], dtype=torch.int32)
    return DevicePageIndex(qo_indptr, kv_indptr, indices, last_page_len)


def _cache(model: Model, dtype: torch.dtype) -> Tensor:
    return _empty(_NUM_PAGES, _PAGE_SIZE, model.num_kv_heads, model.head_dim, dtype=dtype)


def _empty(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")
