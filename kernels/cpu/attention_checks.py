"""What the tensors given to CPU attention must satisfy; a misfit is a mistake of the caller."""

from torch import Tensor

from blendrun.kernels.cpu.kv_cache import KvShape


def check_rows(rows: Tensor, cache: Tensor) -> None:
    """Raises ValueError unless k or v `rows` are [T, Hkv, D] of the cache's dtype."""
    shape = KvShape.of(cache)
    wanted = (shape.num_kv_heads, shape.head_dim)
    if rows.dtype != cache.dtype or rows.shape[1:] != wanted or rows.stride(-1) != 1:
        raise ValueError(
            f"k and v must be {cache.dtype} [T, {wanted[0]}, {wanted[1]}] with a contiguous last "
            f"dim, not {rows.dtype} {list(rows.shape)} with strides {rows.stride()}"
        )


def check_attention(
    q: Tensor,
    k_cache: Tensor,
    q_indptr: Tensor,
    context_len: Tensor,
    page_table: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """Raises ValueError unless the arguments of `paged_attention` fit each other."""
    shape = KvShape.of(k_cache)
    num_seqs = context_len.numel()
    if q.dtype != k_cache.dtype or q.dim() != 3 or q.stride(-1) != 1:
        raise ValueError(f"q must be {k_cache.dtype} [T, Hq, D] with a contiguous last dim")
    if q.shape[2] != shape.head_dim or q.shape[1] % shape.num_kv_heads != 0:
        raise ValueError(f"q {list(q.shape)} does not fit a cache of {shape}")
    if out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous():
        raise ValueError("out must be contiguous, with the shape and dtype of q")
    if q_indptr.numel() != num_seqs + 1 or page_table.shape[:1] != (num_seqs,) or scale <= 0:
        raise ValueError("q_indptr, context_len and page_table disagree, or scale is not positive")
    num_queries = q_indptr.diff()
    capacity = page_table.shape[1] * shape.page_size
    if num_seqs and bool((context_len < num_queries).any() | (context_len > capacity).any()):
        raise ValueError("a context is shorter than its query rows or longer than its pages")
