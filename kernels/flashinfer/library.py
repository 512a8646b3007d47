"""FlashInfer as far as it is used here, and whether it is there. Importing this imports no CUDA."""

import functools
import importlib
from typing import Any, Protocol, cast

import torch

HEAD_DIMS = (64, 128, 256)  # for which its kernels are made
DTYPES = (torch.bfloat16, torch.float16)
DECODE_GROUPS = (1, 2, 3, 4, 8)  # query heads per KV head that decode without tensor cores takes


class FlashInfer(Protocol):
    """Names of the module `flashinfer`, as of 0.7.4; tests put a stand-in here."""

    BatchDecodeWithPagedKVCacheWrapper: Any
    BatchPrefillWithPagedKVCacheWrapper: Any
    MultiLevelCascadeAttentionWrapper: Any
    BatchPODWithPagedKVCacheWrapper: Any
    append_paged_kv_cache: Any
    apply_rope_with_cos_sin_cache_inplace: Any
    rmsnorm: Any
    fused_add_rmsnorm: Any
    silu_and_mul: Any


NAMES = tuple(FlashInfer.__annotations__)


@functools.cache
def find_flashinfer() -> tuple[FlashInfer | None, str]:
    """The installed FlashInfer, or None, and why."""
    try:
        module = importlib.import_module("flashinfer")
    except ImportError as error:
        return None, f"FlashInfer cannot be imported: {error}"
    version = getattr(module, "__version__", "of an unknown version")
    lacking = [name for name in NAMES if not hasattr(module, name)]
    if lacking:
        return None, f"FlashInfer {version} lacks {', '.join(lacking)}"
    return cast(FlashInfer, module), f"FlashInfer {version}"


def why_not(head_dim: int, dtype: torch.dtype) -> str | None:
    """Why FlashInfer's kernels do not take such heads, in one line; None: they do."""
    if dtype not in DTYPES:
        return (
            f"FlashInfer computes in bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
        )
    if head_dim not in HEAD_DIMS:
        return f"FlashInfer has no kernels for heads of {head_dim}"
    return None
