"""Attention over shared prefixes in levels: a prefix is read once for all rows of its sharers.

Level 0 has the outermost prefixes, each further one what lies inside of them, the last one what
each sequence has for itself. Every level covers all rows, in the same order; rows without a prefix
on a level are entries without pages there:

    context     0 ─────── 64 ── 96 ─── …          rows     level 0   level 1   level 2
    sequence a  [ prefix p ][ q ] own              a        p         q         own
    sequence b  [ prefix p ][ q ] own              b        p         q         own
    sequence c  [ prefix p ] own                   c        p         –         own

Knows nothing of tokens or of who owns a page.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes
from blendrun.kernels.paged.page_index import Int32, PageIndex


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    sequences: Int32  # [C] that share prefixes, sharers side by side
    levels: tuple[PageIndex, ...]  # the outermost first; at least two

    @classmethod
    def of(
        cls,
        shared: SharedPrefixes,
        num_rows: Int32,
        context_len: Int32,
        page_table: Int32,
        page_size: int,
    ) -> Self | None:
        """The levels of a step; None: no sequence shares.

        A sequence that has fewer tokens behind its prefix than rows of q is left out: on the last
        level each row must see a token.

        Args:
            shared: of these S sequences.
            num_rows: [S] rows of q, the last tokens of each context.
            context_len: [S] tokens.
            page_table: [S, max_pages].
        """
        order = shared.order
        inner = shared.group[order]
        shares = (inner >= 0) & (num_rows[order] > 0)
        shares &= shared.end[inner] + num_rows[order] <= context_len[order]
        sequences = order[shares]
        if not len(sequences):
            return None
        rows, pages = num_rows[sequences], page_table[sequences]
        chains = _chains(shared, sequences)
        levels = [_level(shared, prefix, rows, pages, page_size) for prefix in chains]
        own = shared.end[shared.group[sequences]]
        levels.append(PageIndex.of(rows, pages, own, context_len[sequences], page_size))
        return cls(sequences, tuple(levels))


def _chains(shared: SharedPrefixes, sequences: Int32) -> Int32:
    """[levels, C] the prefix of each sequence on each level, the outermost first; none: −1."""
    up = [shared.group[sequences]]  # from the innermost prefix outwards
    while (up[-1] >= 0).any():
        up.append(np.where(up[-1] >= 0, shared.parent[up[-1]], -1).astype(np.int32))
    inwards = np.stack(up[:-1])
    depth = (inwards >= 0).sum(axis=0)
    level = np.arange(len(inwards))[:, None]
    place = depth[None] - 1 - level  # in `inwards`
    found = np.take_along_axis(inwards, np.maximum(place, 0), axis=0)
    return np.where(place >= 0, found, -1).astype(np.int32)


def _level(
    shared: SharedPrefixes, prefix: Int32, rows: Int32, pages: Int32, page_size: int
) -> PageIndex:
    """An entry for each run of sequences with the same prefix, or with none."""
    first = np.flatnonzero(np.concatenate([[True], prefix[1:] != prefix[:-1]]))
    found = prefix[first]
    begin, end = (np.where(found >= 0, bound[found], 0) for bound in (shared.begin, shared.end))
    run_rows = np.add.reduceat(rows, first).astype(np.int32)
    return PageIndex.of(run_rows, pages[first], begin, end, page_size)
