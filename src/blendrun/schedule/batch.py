"""What the batcher hands to a backend, and what becomes of KV pages with it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32, Int64


@dataclass(frozen=True, slots=True)
class Freed:
    """Pages that are given back: the own pages of slots, and prefixes that nobody needs."""

    slots: Int32  # rows of the page table
    nodes: Int32  # of the prefix tree


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
    freed: Freed  # before anything else: preempted requests and dropped prefixes
    new_slot: Int32  # [A] rows that begin, in order, …
    new_request: Int32  # [A]
    new_own_start: Int32  # [A] … whose tokens from here on lie in pages of their own

    @property
    def num_prefill_tokens(self) -> int:
        return int(self.num_tokens[self.num_decodes :].sum())


@dataclass(frozen=True, slots=True)
class CacheWrites:
    """KV traffic of a step beside attention: copies first, in order, then one write per row."""

    copy_from: Int32  # [C] pages
    copy_to: Int32  # [C]
    token_idx: Int32  # [W] token of the batch; a token may be written more than once
    slot: Int64  # [W] page * page_size + offset
