"""The plan of a launch: entries of rows and pages, and attention over them.

Entries that have equally many rows and almost equally many pages are computed at once.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashinfer_stand_in.contract import (
    DTYPES,
    KV_DTYPES,
    check_cache,
    check_indptr,
    check_launch,
    check_pages,
    require,
)
from flashinfer_stand_in.pages import get_seq_lens

Cache = tuple[Tensor, Tensor]

_ROOM = 4096  # tokens of a bundle, which stay in a CPU's cache
_PADDED = 1.25  # pages of a bundle's longest entry, over those of its shortest, at most


@dataclass(frozen=True)
class _Bundle:
    """Of E entries with n rows each, padded to L tokens."""

    rows: Tensor  # int64 [E * n] of q
    pages: Tensor  # int64 [E * pages of the longest]; shorter ones repeat their first page
    behind: Tensor  # int64, places in these pages that no entry has
    mask: Tensor | None  # [E or 1, 1, n * group or 1, L], 0 or −inf
    num_entries: int

    def run(self, q: Tensor, cache: Cache, scale: float) -> tuple[Tensor, Tensor]:
        """Of q [E * n, Hq, D]: output like it, and the natural log-sum-exp [E * n, Hq]."""
        (num_rows, num_heads, head_dim), num_kv_heads = q.shape, cache[0].shape[2]
        k, v = (self._tokens(part) for part in cache)
        group, num_rows = num_heads // num_kv_heads, num_rows // self.num_entries
        # heads of a group are rows over the same K and V
        heads = q.view(self.num_entries, num_rows, num_kv_heads, group, head_dim).transpose(1, 2)
        grouped = heads.reshape(self.num_entries, num_kv_heads, -1, head_dim)
        mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            grouped, k, v, 0.0, False, attn_mask=self.mask, scale=scale
        )
        shape = (self.num_entries, num_kv_heads, num_rows, group)
        out = mixed.view(*shape, head_dim).transpose(1, 2).reshape(q.shape)
        return out, lse.view(shape).transpose(1, 2).reshape(q.shape[:2])

    def _tokens(self, part: Tensor) -> Tensor:
        """Float32 [E, Hkv, L, D]. What lies behind the last token is not read, as it may be NaN."""
        tokens = part.index_select(0, self.pages).float().flatten(0, 1)
        tokens.index_fill_(0, self.behind, 0.0)
        return tokens.view(self.num_entries, -1, *part.shape[2:]).transpose(1, 2)


@dataclass(frozen=True)
class Plan:
    """Entries of rows and pages, checked and copied: the caller may reuse its arrays."""

    num_rows: int
    kv_indices: Tensor
    heads: tuple[int, int, int, int]  # q, kv, head_dim, page size
    bundles: tuple[_Bundle, ...]  # all entries but those of no token
    scale: float
    dtype: torch.dtype
    kv_dtype: torch.dtype

    @classmethod
    def of(
        cls,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        last_page_len: Tensor,
        *heads: int,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = torch.float16,
        kv_data_type: Any = None,
    ) -> "Plan":
        num_heads, num_kv_heads, head_dim, page_size = heads
        require(num_heads % num_kv_heads == 0, "query heads are a multiple of KV heads")
        kv_dtypes = (None, q_data_type, *KV_DTYPES)
        require(q_data_type in DTYPES and kv_data_type in kv_dtypes, "dtypes it has kernels for")
        check_indptr("qo_indptr", qo_indptr)
        check_pages(kv_indptr, kv_indices, last_page_len, page_size)
        require(len(qo_indptr) == len(kv_indptr), "as many entries of rows as of pages")
        kv_len = get_seq_lens(kv_indptr, last_page_len, page_size)
        if causal:
            require(bool((kv_len >= qo_indptr.diff()).all()), "every row sees a token")
        group = num_heads // num_kv_heads
        entries = _Entries(qo_indptr, kv_indptr, kv_indices, kv_len, page_size, group, causal)
        return cls(
            int(qo_indptr[-1]),
            kv_indices.clone(),
            (num_heads, num_kv_heads, head_dim, page_size),
            tuple(entries.bundle(chosen) for chosen in entries.alike()),
            head_dim**-0.5 if sm_scale is None else sm_scale,
            q_data_type,
            kv_data_type or q_data_type,
        )

    def run(self, q: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Output [rows, Hq, D] and log-sum-exp to the base 2 [rows, Hq]; of no token: 0, −inf."""
        num_heads, num_kv_heads, head_dim, page_size = self.heads
        check_launch(q)
        fits = q.dtype == self.dtype and cache[0].dtype == self.kv_dtype
        require(fits, f"q is {self.dtype} and the cache {self.kv_dtype}, as planned")
        wanted = (self.num_rows, num_heads, head_dim)
        require(tuple(q.shape) == wanted, f"q is {wanted}, not {tuple(q.shape)}")
        require(q.stride(-1) == 1, "the last dim of q is contiguous")
        check_cache(cache, self.kv_indices, (page_size, num_kv_heads, head_dim))
        out, lse = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
        for bundle in self.bundles:
            rows = q.index_select(0, bundle.rows).float()
            mixed, lse_of = bundle.run(rows, cache, self.scale)
            out[bundle.rows], lse[bundle.rows] = mixed.to(q.dtype), lse_of
        return out, lse / math.log(2)


class _Entries:
    """The index arrays of a launch."""

    def __init__(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len: Tensor,
        page_size: int,
        group: int,
        causal: bool,
    ) -> None:
        self._begin, self._num_rows = qo_indptr[:-1].tolist(), qo_indptr.diff().tolist()
        self._pages = kv_indices.long().tensor_split(kv_indptr[1:-1].long())
        self._len = kv_len.tolist()
        self._page_size, self._group, self._causal = page_size, group, causal

    def alike(self) -> Iterator[list[int]]:
        """Entries that are computed at once; none of those without rows or tokens."""

        def size(entry: int) -> tuple[int, int]:
            return self._num_rows[entry], self._len[entry]

        filled = [entry for entry, length in enumerate(self._len) if length]
        chosen: list[int] = []
        for entry in sorted((entry for entry in filled if self._num_rows[entry]), key=size):
            num_pages = len(self._pages[entry])
            is_alike = bool(chosen) and self._num_rows[chosen[0]] == self._num_rows[entry]
            if not is_alike or (
                num_pages > _PADDED * len(self._pages[chosen[0]])
                or (len(chosen) + 1) * num_pages * self._page_size > _ROOM
            ):
                if chosen:
                    yield chosen
                chosen = []
            chosen.append(entry)
        if chosen:
            yield chosen

    def bundle(self, chosen: list[int]) -> _Bundle:
        """Of entries with equally many rows, the longest one last."""
        num_rows, num_pages = self._num_rows[chosen[0]], len(self._pages[chosen[-1]])
        pages = torch.stack([_padded(self._pages[entry], num_pages) for entry in chosen])
        length = torch.tensor([self._len[entry] for entry in chosen])[:, None, None]
        # a causal row sees the tokens up to its own, the last row all of them
        later = torch.arange(num_rows - 1, -1, -1) if self._causal else torch.zeros(1).long()
        seen = length - later[:, None]  # [E, n or 1, 1]
        token = torch.arange(num_pages * self._page_size)
        is_hidden = token >= seen
        mask = None
        if bool(is_hidden.any()):
            hidden = is_hidden.repeat_interleave(self._group, dim=1) if self._causal else is_hidden
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None]
        rows = torch.tensor([self._begin[entry] for entry in chosen])[:, None]
        behind = (token >= length[:, 0]).flatten().nonzero()[:, 0]
        rows = (rows + torch.arange(num_rows)).flatten()
        return _Bundle(rows, pages.flatten(), behind, mask, len(chosen))


def _padded(pages: Tensor, num_pages: int) -> Tensor:
    return torch.cat([pages, pages[:1].expand(num_pages - len(pages))])
