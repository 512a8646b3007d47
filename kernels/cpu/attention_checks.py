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


def check_step(
    k_cache: Tensor,
    num_heads: int,
    q_indptr: Tensor,
    context_len: Tensor,
    page_table: Tensor,
    scale: float,
) -> None:
    """Raises ValueError unless the arguments of `CpuAttention.plan` fit each other."""
    shape = KvShape.of(k_cache)
    num_seqs = context_len.numel()
    if num_heads % shape.num_kv_heads != 0:
        raise ValueError(f"{num_heads} query heads do not fit a cache of {shape}")
    if q_indptr.numel() != num_seqs + 1 or page_table.shape[:1] != (num_seqs,) or scale <= 0:
        raise ValueError("q_indptr, context_len and page_table disagree, or scale is not positive")
    num_queries = q_indptr.diff()
    capacity = page_table.shape[1] * shape.page_size
    if num_seqs and bool((context_len < num_queries).any() | (context_len > capacity).any()):
        raise ValueError("a context is shorter than its query rows or longer than its pages")


def check_out(q: Tensor, out: Tensor) -> None:
    """Raises ValueError unless attention of q can go into `out`."""
    if out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous():
        raise ValueError("out must be contiguous, with the shape and dtype of q")
