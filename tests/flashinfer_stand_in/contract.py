"""What FlashInfer's documentation asks of arguments; a breach is an error here."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KV_DTYPES = (torch.float8_e4m3fn,)  # beside that of q
WORKSPACE_BYTES = 128 << 20


class ContractError(AssertionError):
    """An argument that the real library must not be given."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise ContractError(message)


def check_launch(rows: Tensor) -> None:
    """A GPU refuses a grid of no blocks."""
    require(len(rows) > 0, "a launch has rows")


def check_workspace(workspace: Tensor, kv_layout: str) -> None:
    require(
        workspace.dtype == torch.uint8 and workspace.dim() == 1, "the workspace is uint8 [bytes]"
    )
    require(workspace.numel() >= WORKSPACE_BYTES, "the workspace has 128 MB")
    require(kv_layout == "NHD", f"layout {kv_layout} is not used here")


def check_indptr(name: str, indptr: Tensor, total: int | None = None) -> None:
    """From 0, never falling, to `total`."""
    _check_ids(name, indptr)
    require(len(indptr) >= 2, f"{name} has an entry")
    require(int(indptr[0]) == 0, f"{name} begins with 0")
    require(bool((indptr.diff() >= 0).all()), f"{name} never falls")
    require(total is None or int(indptr[-1]) == total, f"{name} ends with {total}")


def check_pages(indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> None:
    check_indptr("kv_indptr", indptr, len(indices))
    _check_ids("kv_indices", indices)
    _check_ids("kv_last_page_len", last_page_len)
    require(len(last_page_len) == len(indptr) - 1, "a last page length for each entry")
    least = (indptr.diff() > 0).int()  # entries without pages have 0
    require(
        bool(((last_page_len >= least) & (last_page_len <= least * page_size)).all()),
        f"last page lengths are 1 to {page_size}, 0 where there is no page",
    )


def check_cache(cache: tuple[Tensor, Tensor], indices: Tensor, shape: tuple[int, ...]) -> None:
    """K and V [pages, *shape] with all pages of `indices`."""
    k, v = cache
    for part in cache:
        require(part.dim() == 4 and tuple(part.shape[1:]) == shape, f"pages are {shape}")
        require(part.stride(-1) == 1, "the last dim of pages is contiguous")
    require(k.dtype == v.dtype and k.shape == v.shape, "K and V are alike")
    require(k.stride() == v.stride(), "K and V have equal strides")
    if len(indices):
        inside = int(indices.min()) >= 0 and int(indices.max()) < len(k)
        require(inside, f"page ids are within [0, {len(k)})")


def _check_ids(name: str, ids: Tensor) -> None:
    require(ids.dtype == torch.int32, f"{name} is int32, not {ids.dtype}")
    require(ids.dim() == 1 and ids.is_contiguous(), f"{name} is flat and contiguous")
