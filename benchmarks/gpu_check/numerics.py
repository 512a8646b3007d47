"""Our Triton kernels, and FlashInfer's where it is there, against float64.

Needs torch and numpy alone, beside the kernels' own libraries. Inputs are rounded to the kernels'
dtype before float64 takes them, so an error is the kernel's own.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gpu_check.device import open_device
from gpu_check.options import CheckOptions
from gpu_check.plain_numba import stand_in_for_numba
from gpu_check.results import Findings

HAS_NO_NUMBA = stand_in_for_numba()  # before what follows is imported

from blendrun.engine.compute import Compute  # noqa: E402
from blendrun.engine.token_check import differing_frac  # noqa: E402
from blendrun.kernels.cpu.rotary_reference import rotated  # noqa: E402
from blendrun.kernels.cpu.rotation import Rotation  # noqa: E402
from blendrun.kernels.cpu.shared_prefixes import find_shared_prefixes  # noqa: E402
from gpu_check.kernels import computes  # noqa: E402

_PAGE_SIZE = 16
# (rows of q, context, pages shared with the first of its kind)
_STEPS = {
    "decode": [(1, n, 0) for n in (1, 15, 16, 17, 333, 1000)],
    "prefill": [(40, 40, 0), (7, 300, 0), (17, 33, 0), (128, 640, 0)],
    "shared": [(1, 161, 9), (1, 150, 9), (1, 147, 6), (3, 130, 6), (1, 129, 6)],
    "mixed": [(1, 161, 9), (1, 150, 9), (1, 1000, 0), (40, 40, 0), (17, 200, 0)],
}
_LIMIT = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


@torch.inference_mode()
def check(options: CheckOptions, findings: Findings) -> None:
    device = open_device(options)
    found, reasons = computes(options, device.device)
    findings.note(missing=reasons, tolerance=_LIMIT[device.dtype], without_numba=HAS_NO_NUMBA)
    errors: dict[str, dict[str, float | str]] = {}
    for name, compute in found.items():
        errors[name] = {}
        cases = _attention_cases(options, compute, device.dtype)
        cases["rotary and KV writes"] = partial(_writes_error, options, compute, device.dtype)
        cases |= _elementwise_cases(options, compute, device.dtype)
        vocab_size = options.model_config["vocab_size"]
        drawn = (compute.tokens, vocab_size, device.dtype, device.device)
        cases["tokens that differ"] = partial(differing_frac, *drawn)
        for what, case in cases.items():
            try:
                value = case()
            except Exception as problem:
                errors[name][what] = f"fails: {problem}".splitlines()[0]
                if "CUDA error" in str(problem):  # nothing works in this process any more
                    findings.note(errors=errors)
                    raise
            else:
                errors[name][what] = value if value < 1e9 else "not a number"
            findings.note(errors=errors)
    worst = {
        name: max((e for e in by.values() if isinstance(e, float)), default=0.0)
        for name, by in errors.items()
    }
    failed = [
        f"{name} {what}"
        for name, by in errors.items()
        for what, error in by.items()
        if isinstance(error, str) or error > _LIMIT[device.dtype]
    ]
    findings.note(worst=worst, failed=failed)


def _attention_cases(
    options: CheckOptions, compute: Compute, dtype: torch.dtype
) -> dict[str, Callable[[], float]]:
    return {
        f"{name} attention": partial(_attention_error, options, compute, dtype, steps)
        for name, steps in _STEPS.items()
    }


def _attention_error(
    options: CheckOptions,
    compute: Compute,
    dtype: torch.dtype,
    steps: list[tuple[int, int, int]],
) -> float:
    """Worst relative error of a row and head of a step over random pages."""
    config, device = options.model_config, compute.device
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["head_dim"]
    rows, context, _ = np.array(steps, np.int32).T
    table, num_pages = _pages(steps)
    random = torch.Generator().manual_seed(0)
    k_cache, v_cache = compute.attention.alloc_kv_cache(
        1, num_pages, _PAGE_SIZE, kv_heads, head_dim, dtype
    )
    for cache in (k_cache, v_cache):
        cache.copy_(torch.randn(cache.shape, generator=random))
    q = torch.randn(int(rows.sum()), heads, head_dim, generator=random).to(dtype).to(device)
    shared = find_shared_prefixes(
        np.arange(len(rows), dtype=np.int32),
        table,
        rows,
        context,
        _PAGE_SIZE,
        heads // kv_heads,
        cost_len=0,
    )
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    plan = compute.attention.plan(
        k_cache[0],
        heads,
        torch.from_numpy(indptr),
        torch.from_numpy(context),
        torch.from_numpy(table),
        head_dim**-0.5,
        shared,
    )
    actual = plan.run(q.clone(), k_cache[0], v_cache[0])
    worst = 0.0
    for s, (count, length, _) in enumerate(steps):
        pages = torch.from_numpy(table[s, : -(-length // _PAGE_SIZE)]).long().to(device)
        k, v = (cache[0][pages].flatten(0, 1)[:length].double() for cache in (k_cache, v_cache))
        mine = slice(int(indptr[s]), int(indptr[s + 1]))
        worst = max(worst, _error(actual[mine], _exact(q[mine].double(), k, v, count, length)))
    return worst


def _writes_error(options: CheckOptions, compute: Compute, dtype: torch.dtype) -> float:
    """Worst relative error of a head of q, and of K and V where they were written."""
    config, device = options.model_config, compute.device
    heads = [config["num_attention_heads"], *[config["num_key_value_heads"]] * 2]
    head_dim, num_tokens, num_pages = config["head_dim"], 37, 5
    random = torch.Generator().manual_seed(2)
    caches = compute.attention.alloc_kv_cache(1, num_pages, _PAGE_SIZE, heads[1], head_dim, dtype)
    slots = torch.randperm(num_pages * _PAGE_SIZE, generator=random)[:num_tokens]
    qkv = torch.randn(num_tokens, sum(heads), head_dim, generator=random).to(dtype).to(device)
    angles = torch.rand(num_tokens, head_dim // 2, generator=random) * 1000
    rotation = Rotation(angles.cos().to(device), angles.sin().to(device), None, None, 1e-5)
    q, k, v = qkv.double().split(heads, dim=1)
    expected = (rotated(q, rotation, None), rotated(k, rotation, None), v)
    q, k, v = qkv.clone().split(heads, dim=1)  # strided, as in a decoder
    writes = compute.attention.plan_writes(torch.arange(num_tokens, dtype=torch.int32), slots)
    writes.run(q, k, v, rotation, caches[0][0], caches[1][0])
    written = (cache[0].flatten(0, 1)[slots.to(device)] for cache in caches)
    return max(map(_error, (q, *written), expected))


def _exact(q: Tensor, k: Tensor, v: Tensor, rows: int, length: int) -> Tensor:
    """Causal attention in float64, [rows, Hq, D]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = q.transpose(0, 1) @ keys.transpose(1, 2) * q.shape[-1] ** -0.5
    hidden = torch.ones(rows, length, dtype=torch.bool, device=q.device).triu(length - rows + 1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1)


def _pages(steps: list[tuple[int, int, int]]) -> tuple[np.ndarray, int]:
    """Page table int32 [S, max_pages], pages in random order; and how many pages there are."""
    counts = [-(-context // _PAGE_SIZE) for _, context, _ in steps]
    free = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
    table = np.zeros((len(counts), max(counts)), np.int32)
    start = 0
    for row, (count, (_, _, shared)) in enumerate(zip(counts, steps, strict=True)):
        own = min(shared, count) if row else 0
        table[row, :own] = table[0, :own]
        table[row, own:count] = free[start + own : start + count]
        start += count
    return table, len(free)


def _elementwise_cases(
    options: CheckOptions, compute: Compute, dtype: torch.dtype
) -> dict[str, Callable[[], float]]:
    width = options.model_config["hidden_size"]
    random = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype).to(compute.device)

    hidden, branch, gate_up, weight = normal(9, width), normal(9, width), normal(9, 2 * width), 1
    weight = 1 + normal(width)

    def norm() -> float:
        added = hidden.clone()
        actual = compute.elementwise.add_rms_norm(added, branch.clone(), weight, 1e-5)
        # the sum is rounded to the dtype in between, where the kernel says so
        exact = (hidden + branch).double()
        exact = exact * (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        return _error(actual, exact)

    def activation() -> float:
        gate, up = gate_up.double().chunk(2, dim=-1)
        exact = torch.nn.functional.silu(gate) * up
        return _error(compute.elementwise.silu_mul(gate_up.clone()), exact)

    return {"rms_norm": norm, "silu_mul": activation}


def _error(actual: Tensor, exact: Tensor) -> float:
    """Worst row's, of their norms; infinite where one is not a number."""
    error = (actual.double() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-30)
    return float(error.nan_to_num(torch.inf).amax())
