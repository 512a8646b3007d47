"""What FlashInfer 0.7.4 does, in plain torch on the CPU: as much of it as the engine uses.

Holds callers to the documented contract (dtypes, shapes, index arrays), also where the real library
would read wild memory instead. Float32 is taken, too, so that tokens can be compared.
"""

from flashinfer_stand_in.contract import ContractError
from flashinfer_stand_in.elementwise import (
    apply_rope_with_cos_sin_cache_inplace,
    fused_add_rmsnorm,
    rmsnorm,
    silu_and_mul,
)
from flashinfer_stand_in.pages import (
    append_paged_kv_cache,
    get_batch_indices_positions,
    get_seq_lens,
)
from flashinfer_stand_in.wrappers import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPODWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    MultiLevelCascadeAttentionWrapper,
)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPODWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "ContractError",
    "MultiLevelCascadeAttentionWrapper",
    "append_paged_kv_cache",
    "apply_rope_with_cos_sin_cache_inplace",
    "fused_add_rmsnorm",
    "get_batch_indices_positions",
    "get_seq_lens",
    "rmsnorm",
    "silu_and_mul",
]
