"""Which KV page holds what: pages of prefix-tree nodes and of running requests.

The batcher decides and counts; this hands out page numbers for what it has decided. All prompts
are known, so nothing is matched at run time: the plan's tree is the index. A node's edge [s, e)
owns the pages from s // page_size on. Where s lies inside a page, the node's first page starts
with a copy of what is above it, so sharing is exact to the token:

    page        0         1          2                page size 4, node A = [0, 6), B = [6, 9)
    A owns  [0 1 2 3] [4 5 . .]
    B owns            [4'5'6 7] [8 . . .]             4' 5' copied, or written twice in the step
                                                      that computes them
A request's own tokens (its leaf and its output) lie in pages of its own.
"""

import numpy as np

from blendrun.engine.kv_segment import Segment
from blendrun.engine.page_pool import PagePool
from blendrun.engine.step_writes import StepWrites
from blendrun.errors import BackendError
from blendrun.schedule.batch import Batch, CacheWrites, Freed
from blendrun.tree.prefix_tree import ROOT, Int32, PrefixTree


class PrefixCache:
    """Page numbers for at most `max_seqs` running requests.

    `begin_step` → the backend takes `take_writes` and reads `page_table` → `free`.
    """

    def __init__(
        self,
        tree: PrefixTree,
        *,
        num_pages: int,
        page_size: int,
        max_seqs: int,
        max_len: int,
        share: bool = True,
    ) -> None:
        """`max_len` is the longest possible context; `share` as in the batcher."""
        self.page_size, self.num_pages = page_size, num_pages
        self.page_table = np.zeros((max_seqs, -(-max_len // page_size)), np.int32)
        self._tree, self._share = tree, share
        self._pool = PagePool(num_pages)
        self._nodes: dict[int, Segment] = {}  # shared segments with pages
        self._path: dict[int, list[Segment]] = {}  # by slot, shared segments from the root down
        self._own_start = np.zeros(max_seqs, np.int32)
        self._own_pages = np.zeros(max_seqs, np.int32)
        self._step = 0
        self._writes = StepWrites()

    def begin_step(self, batch: Batch) -> None:
        """Pages and writes for every token of `batch`."""
        self._step = batch.step
        self._writes = StepWrites()
        self.free(batch.freed)
        new = {int(slot): i for i, slot in enumerate(batch.new_slot)}
        n = batch.num_decodes
        self._decode(batch.slot[:n], batch.start[:n])
        token_base = n
        for i in range(n, len(batch.slot)):
            slot, start, size = int(batch.slot[i]), int(batch.start[i]), int(batch.num_tokens[i])
            if slot in new:
                self._enter(batch, new.pop(slot))
            self._prefill(slot, start, start + size, token_base)
            token_base += size
        for place in new.values():
            self._enter(batch, place)

    def take_writes(self) -> CacheWrites:
        """Copies and writes of the step."""
        return self._writes.collected()

    def free(self, freed: Freed) -> None:
        """Give back what the batcher no longer counts."""
        for slot in freed.slots.tolist():
            first, count = self._own_start[slot] // self.page_size, self._own_pages[slot]
            self._pool.give_back(self.page_table[slot, first : first + count])
            self._own_pages[slot] = 0
            del self._path[slot]
        for node in freed.nodes.tolist():
            self._pool.give_back(np.array(self._nodes.pop(node).pages, np.int32))

    def check_integrity(self, free_pages: int) -> None:
        """Prove that every page is free or has one owner, and that the batcher counts the same.

        Raises:
            BackendError: with all numbers.
        """
        size = self.page_size
        shared = [page for segment in self._nodes.values() for page in segment.pages]
        own = [np.zeros(0, np.int32)]
        for slot in self._path:
            first = self._own_start[slot] // size
            own.append(self.page_table[slot, first : first + self._own_pages[slot]])
        owned = np.concatenate(own)
        pages = np.concatenate([self._pool.free_pages(), shared, owned]).astype(np.int64)
        if (
            not np.array_equal(np.sort(pages), np.arange(self.num_pages))
            or self._pool.num_free != free_pages
        ):
            raise BackendError(
                f"page accounting is broken: {self._pool.num_free} free + {len(shared)} in "
                f"prefixes + {len(owned)} in requests, {self.num_pages} in all; "
                f"the batcher counts {free_pages} free"
            )

    def _enter(self, batch: Batch, place: int) -> None:
        """A request takes a row, with the pages of the prefix that is there."""
        slot, request = int(batch.new_slot[place]), int(batch.new_request[place])
        self._own_start[slot], self._own_pages[slot] = batch.new_own_start[place], 0
        path = []
        for node in self._shared_path(request):
            segment = self._nodes.get(node)
            if segment is None:
                start, end = int(self._tree.depth[self._tree.parent[node]]), self._tree.depth[node]
                segment = Segment(start, int(end), node)
            else:
                first = segment.start // self.page_size
                self.page_table[slot, first : first + len(segment.pages)] = segment.pages
            path.append(segment)
        self._path[slot] = path

    def _shared_path(self, request: int) -> list[int]:
        """Nodes above a request's leaf, from below the root."""
        if not self._share:
            return []
        above = int(self._tree.parent[self._tree.leaf_node[request]])
        return [] if above == ROOT else self._tree.path(above)

    def _decode(self, slots: Int32, positions: Int32) -> None:
        """Room for one token per row; rows are tokens 0, 1, … of the batch."""
        size = self.page_size
        opens = (positions == self._own_start[slots]) & (positions % size != 0)
        for i in np.flatnonzero(opens).tolist():
            self._open_own(int(slots[i]))
        grows = np.flatnonzero(positions % size == 0)
        if len(grows):
            at = slots[grows]
            self.page_table[at, positions[grows] // size] = self._pool.take(len(grows))
            self._own_pages[at] += 1
        pages = self.page_table[slots, positions // size].astype(np.int64)
        self._writes.write(np.arange(len(slots), dtype=np.int32), pages * size + positions % size)

    def _prefill(self, slot: int, start: int, end: int, token_base: int) -> None:
        """Room for positions [start, end); `start` is token `token_base` of the batch."""
        own_start, size = int(self._own_start[slot]), self.page_size
        for segment in self._path[slot]:
            a, b = max(start, segment.start), min(end, segment.end, own_start)
            if a < b:
                self._fill(slot, segment, a, b, token_base + a - start)
        a = max(start, own_start)
        if end <= a:
            return
        if self._own_pages[slot] == 0:
            self._open_own(slot)
        first = own_start // size
        have, want = first + int(self._own_pages[slot]), (end - 1) // size + 1
        self.page_table[slot, have:want] = self._pool.take(want - have)
        self._own_pages[slot] = want - first
        tokens = np.arange(token_base + a - start, token_base + end - start, dtype=np.int32)
        positions = np.arange(a, end)
        pages = self.page_table[slot, positions // size].astype(np.int64)
        self._writes.write(tokens, pages * size + positions % size)

    def _fill(self, slot: int, segment: Segment, a: int, b: int, token_idx: int) -> None:
        """Pages and writes for positions [a, b) of `segment`; `a` is token `token_idx`."""
        if segment.start + segment.filled != a:
            raise BackendError(f"tokens {a} to {b} do not continue {segment}")
        size, first = self.page_size, segment.start // self.page_size
        self._nodes[segment.node] = segment
        if not segment.pages:
            segment.pages.append(self._open(slot, first, segment.start))
        for index in range(first + len(segment.pages), (b - 1) // size + 1):
            page = int(self._pool.take(1)[0])
            segment.pages.append(page)
            self.page_table[slot, index] = page
        positions = np.arange(a, b)
        pages = np.array(segment.pages, np.int64)[positions // size - first]
        tokens = np.arange(token_idx, token_idx + b - a, dtype=np.int32)
        self._writes.write(tokens, pages * size + positions % size)
        segment.fill(a, b, self._step, token_idx)

    def _open_own(self, slot: int) -> None:
        own_start = int(self._own_start[slot])
        self._open(slot, own_start // self.page_size, own_start)
        self._own_pages[slot] = 1

    def _open(self, slot: int, index: int, start: int) -> int:
        """First page of what begins at `start`, with what lies above it in the same page.

        Tokens that this very step computes are written twice, older ones are copied.
        """
        size = self.page_size
        above = int(self.page_table[slot, index])
        page = int(self._pool.take(1)[0])
        self.page_table[slot, index] = page
        computed_now = [
            (other.step_base + position, page * size + position % size)
            for other in self._path[slot]
            for position in other.computed_in(self._step, index * size, start)
        ]
        if len(computed_now) < start % size:
            self._writes.copy(above, page)
        if computed_now:
            tokens, slots = np.array(computed_now, np.int64).T
            self._writes.write(tokens.astype(np.int32), slots)
        return page
