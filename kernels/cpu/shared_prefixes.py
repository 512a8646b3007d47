"""Which sequences of a step read the same KV pages at the beginning of their contexts.

Pages are the evidence: where two rows of the page table begin alike, so do the contexts. Prefixes
are nested, as in the tree that the pages came from; each range of a context is in one of them at
most. Knows nothing of tokens or of who owns a page.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.compiled import compiled

Int32 = npt.NDArray[np.int32]

# What sharing costs a sequence with R query rows (query tokens times query heads per KV head), as
# tokens of a prefix that it must save: this times R (R + 4). Every row has one more result to
# merge, and the more rows read a prefix alone, the less of their time is reading. From a Zen 4.
COST_LEN = 16


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """G ranges of context, each for some of S sequences; int32, contiguous."""

    order: Int32  # [S] sequences, sharers side by side
    group: Int32  # [S] by sequence: its innermost prefix; none: −1
    first: Int32  # [G] sharers are order[first:last], two at least
    last: Int32  # [G]
    begin: Int32  # [G] tokens of the context, multiples of the page size
    end: Int32  # [G]
    parent: Int32  # [G] an earlier prefix, which ends where this one begins; none: −1

    @property
    def num_groups(self) -> int:
        return len(self.first)

    def columns(self) -> tuple[Int32, ...]:
        """All of them, in the order of `AttentionCall`."""
        return (
            self.order,
            self.group,
            self.first,
            self.last,
            self.begin,
            self.end,
            self.parent,
        )


def find_shared_prefixes(
    order: Int32,
    page_table: Int32,
    num_tokens: Int32,
    context_len: Int32,
    page_size: int,
    heads_per_kv: int,
    cost_len: int = COST_LEN,
) -> SharedPrefixes | None:
    """The prefixes of a step that are worth reading once for all; None: there are none.

    Args:
        order: [S], a permutation; only neighbours in it are found to share.
        page_table: [S, max_pages], as `attention.CpuAttention.paged_attention` takes it.
        num_tokens: [S] query tokens, the last of each context.
        context_len: [S] tokens, the query tokens included.
        page_size: in tokens.
        heads_per_kv: query heads that share a KV head.
        cost_len: see COST_LEN; 0: whatever can be shared is worth it.
    """
    # whole pages that every query of a sequence sees
    seen = np.where(num_tokens > 0, (context_len - num_tokens + 1) // page_size, 0)
    rows = num_tokens.astype(np.int64) * heads_per_kv
    cost = cost_len * rows * (rows + 4)
    can_gain = cost[order] <= context_len[order]
    order = np.concatenate([order[can_gain], order[~can_gain]]).astype(np.int32)
    columns = np.empty((5, max(len(order) - 1, 0)), np.int32)
    group = np.full(len(order), -1, np.int32)
    count = _find(order, page_table, seen.astype(np.int32), cost, page_size, columns, group)
    if count == 0:
        return None
    return SharedPrefixes(order, group, *(column[:count].copy() for column in columns))


@compiled
def _find(
    order: Int32,
    page_table: Int32,
    seen: Int32,
    cost: npt.NDArray[np.int64],
    page_size: int,
    columns: Int32,
    group: Int32,
) -> int:
    """Fills `group` and the rows of `columns` (first to parent); the number of prefixes."""
    first, last, begin, end, parent = columns
    # runs of neighbours with equal first pages, inner ones before the outer one
    num_runs = 0
    run = np.empty((3, max(len(order) - 1, 0)), np.int32)  # first, last, pages
    stack = np.zeros((2, len(order) + 1), np.int32)  # first, pages; the lowest never ends
    depth = 0
    for i in range(1, len(order) + 1):
        alike = 0
        if i < len(order):
            left, right = order[i - 1], order[i]
            most = min(seen[left], seen[right])
            while alike < most and page_table[left, alike] == page_table[right, alike]:
                alike += 1
        start = i - 1
        while stack[1, depth] > alike:
            start = stack[0, depth]
            run[0, num_runs], run[1, num_runs], run[2, num_runs] = start, i, stack[1, depth]
            num_runs += 1
            depth -= 1
        if stack[1, depth] < alike:
            depth += 1
            stack[0, depth], stack[1, depth] = start, alike
    # from the outermost in: each takes what the ones around it leave, if that is worth it
    count, above = 0, -1
    for j in range(num_runs - 1, -1, -1):
        while above >= 0 and not (first[above] <= run[0, j] and run[1, j] <= last[above]):
            above = parent[above]
        from_token = 0 if above < 0 else end[above]
        to_token = run[2, j] * page_size
        saved = (run[1, j] - run[0, j] - 1) * (to_token - from_token)
        if saved <= 0 or saved < cost[order[run[0, j] : run[1, j]]].sum():
            continue
        first[count], last[count] = run[0, j], run[1, j]
        begin[count], end[count], parent[count] = from_token, to_token, above
        for i in range(run[0, j], run[1, j]):
            group[order[i]] = count
        above = count
        count += 1
    return count
