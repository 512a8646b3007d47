"""What the batcher hands to a backend, and what it asks of the KV cache."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32, Int64


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: S sequences, decodes first, each with the next tokens of its request."""

    step: int
    slot: Int32  # [S] row of the page table
    request: Int32  # [S]
    start: Int32  # [S] position of the first token processed
    num_tokens: Int32  # [S] tokens processed
    needs_logits: npt.NDArray[np.bool_]  # [S] the last token known so far is among them
    num_decodes: int

    @property
    def num_prefill_tokens(self) -> int:
        return int(self.num_tokens[self.num_decodes :].sum())


@dataclass(frozen=True, slots=True)
class Match:
    """What the cache holds of a request that is not running yet."""

    cached_len: int  # leading tokens whose K and V exist, or will when this step reads them
    is_being_filled: bool  # another running request is computing what comes next


@dataclass(frozen=True, slots=True)
class CacheWrites:
    """KV traffic of a step beside attention: copies first, in order, then one write per row."""

    copy_from: Int32  # [C] pages
    copy_to: Int32  # [C]
    token_idx: Int32  # [W] token of the batch; a token may be written more than once
    slot: Int64  # [W] page * page_size + offset


class KVCache(Protocol):
    """Pages of prefix-tree nodes and of running requests. Lengths are tokens, a slot is a row."""

    page_size: int
    num_pages: int

    def available_pages(self) -> int:
        """Pages that can be had now, unneeded prefixes dropped, promised ones left out."""

    def match(self, request: int, known_len: int) -> Match: ...

    def pages_for(self, request: int, cached_len: int, known_len: int) -> int:
        """New pages a request takes until all of its known tokens are computed."""

    def admission_pages(self, request: int, cached_len: int, known_len: int) -> int:
        """`pages_for`, and the pages on its path that are to be had now but not once it runs."""

    def acquire(self, slot: int, request: int, known_len: int) -> int:
        """Give `request` the row `slot` and promise its pages; the cached length."""

    def begin_step(self) -> None: ...

    def extend(self, slot: int, start: int, end: int, token_base: int) -> None:
        """Make room for positions [start, end); `start` is token `token_base` of the batch."""

    def extend_decodes(self, slots: Int64, positions: Int32) -> None:
        """Make room for one token per row; rows are tokens 0, 1, … of the batch."""

    def decode_pages(self, slots: Int64, positions: Int32) -> int:
        """Pages that `extend_decodes` would take."""

    def release(self, slot: int, finished: bool) -> None: ...
