"""Run-time prefix cache: KV pages of prefix-tree nodes and of running requests.

All prompts are known, so the cache is indexed by the plan's tree and matches nothing at run time.
A node's edge [s, e) owns the pages from s // page_size on. Where s lies inside a page, the node's
first page starts with a copy of what is above it, so sharing is exact to the token:

    page        0         1          2                page size 4, node A = [0, 6), B = [6, 9)
    A owns  [0 1 2 3] [4 5 . .]
    B owns            [4'5'6 7] [8 . . .]             4' 5' copied, or written twice in the step
                                                      that computes them
A request's own tokens (its leaf and its output) are a node of its own that ends with it.
Nodes are filled by one running request at a time. A node that no waiting request needs goes when
its last user ends; when memory runs short, the one that fewest waiting requests need goes first.
"""

import numpy as np

from blendrun.engine.kv_segment import NOBODY, UNBOUNDED, Segment, num_pages
from blendrun.engine.page_pool import PagePool
from blendrun.engine.step_writes import StepWrites
from blendrun.errors import BackendError
from blendrun.schedule.batch import CacheWrites, Match
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree


class PrefixCache:
    """Pages for at most `max_seqs` running requests. See `schedule.batch.KVCache`.

    `num_pages` must hold the longest request alone; `max_len` is the longest possible context.
    """

    def __init__(
        self,
        tree: PrefixTree,
        pending: Int32,
        *,
        num_pages: int,
        page_size: int,
        max_seqs: int,
        max_len: int,
        share: bool = True,
    ) -> None:
        """`pending`: requests still to run; `share=False` gives every request its own pages."""
        self.page_size, self.num_pages = page_size, num_pages
        self.page_table = np.zeros((max_seqs, -(-max_len // page_size)), np.int32)
        self._tree, self._share = tree, share
        self._pool = PagePool(num_pages)
        self._waiting = _count_below(tree, pending)  # requests not running that pass a node, [K]
        self._users = np.zeros(tree.num_nodes, np.int32)  # running ones
        self._nodes: dict[int, Segment] = {}  # shared segments with pages or users
        self._path: dict[int, list[Segment]] = {}  # by slot; the last one is its own
        self._promised = np.zeros(max_seqs, np.int64)  # pages still to be taken by prefills, …
        self._goal = np.zeros(max_seqs, np.int64)  # … which end at this length
        self._idle_pages = 0  # of shared segments without users
        self._step = self._taken = 0
        self._writes = StepWrites()

    # --- what the batcher asks ---

    def available_pages(self) -> int:
        return self._pool.num_free + self._idle_pages - int(self._promised.sum())

    def match(self, request: int, known_len: int) -> Match:
        """Cached length; always leaves one token to compute, since its logits are needed."""
        cached = 0
        for node in self._shared_path(request):
            segment = self._nodes.get(node)
            if segment is None:
                break
            cached = segment.start + segment.filled
            if not segment.is_full:
                return Match(min(cached, known_len - 1), segment.owner != NOBODY)
        return Match(min(cached, known_len - 1), False)

    def pages_for(self, request: int, cached_len: int, known_len: int) -> int:
        size, count = self.page_size, 0
        own_start = self._own_start(request, cached_len)
        for node in self._shared_path(request):
            start, end = self._edge(node)
            end = min(end, own_start)
            if end > cached_len:
                count += num_pages(start, end, size) - num_pages(start, cached_len, size)
        return count + num_pages(own_start, known_len + 1, size)

    def admission_pages(self, request: int, cached_len: int, known_len: int) -> int:
        segments = (self._nodes.get(node) for node in self._shared_path(request))
        idle = sum(len(s.pages) for s in segments if s and self._users[s.node] == 0)
        return self.pages_for(request, cached_len, known_len) + idle

    def acquire(self, slot: int, request: int, known_len: int) -> int:
        cached = self.match(request, known_len).cached_len
        leaf = int(self._tree.leaf_node[request])
        own = Segment(self._own_start(request, cached), UNBOUNDED, leaf)
        self._promised[slot] = self.pages_for(request, cached, known_len)
        self._goal[slot] = known_len
        path = []
        for node in self._shared_path(request):
            segment = self._nodes.get(node)
            if segment is None:
                segment = self._nodes[node] = Segment(*self._edge(node), node)
            if self._users[node] == 0:
                self._idle_pages -= len(segment.pages)
            self._users[node] += 1
            self._waiting[node] -= 1
            path.append(segment)
            first = segment.start // self.page_size
            self.page_table[slot, first : first + len(segment.pages)] = segment.pages
        self._path[slot] = [*path, own]
        self._claim(slot, cached)
        return cached

    # --- a step ---

    def begin_step(self) -> None:
        self._step += 1
        self._writes = StepWrites()

    def extend(self, slot: int, start: int, end: int, token_base: int) -> None:
        before = self._taken
        *shared, own = self._path[slot]
        for segment in shared:
            a, b = max(start, segment.start), min(end, segment.end, own.start)
            if a < b:
                self._fill(slot, segment, a, b, token_base + a - start)
        if end > own.start:
            a = max(start, own.start)
            self._fill(slot, own, a, end, token_base + a - start)
        elif end == own.start and not own.pages:
            self._open(slot, own)
        self._claim(slot, end)
        still = self._promised[slot] - (self._taken - before)
        self._promised[slot] = max(still, 0) if end < self._goal[slot] else 0

    def extend_decodes(self, slots: Int64, positions: Int32) -> None:
        size = self.page_size
        for i in np.flatnonzero(positions % size == 0):
            slot, position = int(slots[i]), int(positions[i])
            own = self._path[slot][-1]
            if position > own.start:  # else the prefill has opened the page already
                self._add_page(slot, own, position // size)
        pages = self.page_table[slots, positions // size].astype(np.int64)
        self._writes.write(np.arange(len(slots), dtype=np.int32), pages * size + positions % size)

    def decode_pages(self, slots: Int64, positions: Int32) -> int:
        at_edge = np.flatnonzero(positions % self.page_size == 0)
        return sum(int(positions[i]) > self._path[int(slots[i])][-1].start for i in at_edge)

    def take_writes(self) -> CacheWrites:
        """Copies and writes of the step since `begin_step`."""
        return self._writes.collected()

    def release(self, slot: int, finished: bool) -> None:
        """Free the request's own pages; a preempted one (`finished=False`) waits again."""
        *shared, own = self._path.pop(slot)
        self._promised[slot] = 0
        self._pool.give_back(own.pages)
        for segment in shared:
            if segment.owner == slot:
                segment.owner = NOBODY
            self._users[segment.node] -= 1
            if not finished:
                self._waiting[segment.node] += 1
            if self._users[segment.node] == 0:
                self._idle_pages += len(segment.pages)
                if self._waiting[segment.node] == 0 or not segment.pages:
                    self._drop(segment)

    def forget(self, request: int) -> None:
        """A waiting request will never run."""
        for node in self._shared_path(request):
            self._waiting[node] -= 1
            segment = self._nodes.get(node)
            if segment and self._waiting[node] == 0 and self._users[node] == 0:
                self._drop(segment)

    @property
    def used_pages(self) -> int:
        return self.num_pages - self._pool.num_free

    @property
    def idle_pages(self) -> int:
        """Pages kept for waiting requests only."""
        return self._idle_pages

    def check_integrity(self) -> None:
        """Prove that every page is free or has one owner, and that counts match.

        Raises:
            BackendError: with all numbers.
        """
        shared = [page for s in self._nodes.values() for page in s.pages]
        own = [page for path in self._path.values() for page in path[-1].pages]
        pages = np.concatenate([self._pool.free_pages(), shared, own]).astype(np.int64)
        users = np.zeros_like(self._users)
        for path in self._path.values():
            users[[segment.node for segment in path[:-1]]] += 1
        idle = sum(len(s.pages) for s in self._nodes.values() if self._users[s.node] == 0)
        ok = (
            np.array_equal(np.sort(pages), np.arange(self.num_pages))
            and np.array_equal(users, self._users)
            and idle == self._idle_pages
            and (self._waiting >= 0).all()
        )
        if not ok:
            raise BackendError(
                f"page accounting is broken: {self._pool.num_free} free + {len(shared)} in "
                f"prefixes + {len(own)} in requests, {self.num_pages} in all; idle {idle}, "
                f"counted {self._idle_pages}; users match: {np.array_equal(users, self._users)}"
            )

    # --- inside ---

    def _shared_path(self, request: int) -> list[int]:
        """Nodes above a request's leaf, from below the root."""
        if not self._share:
            return []
        return self._tree.path(int(self._tree.parent[self._tree.leaf_node[request]]))

    def _edge(self, node: int) -> tuple[int, int]:
        """Positions [start, end) of a node's tokens."""
        return int(self._tree.depth[self._tree.parent[node]]), int(self._tree.depth[node])

    def _own_start(self, request: int, cached_len: int) -> int:
        """First token in pages of the request's own.

        A prompt that is cached to its end recomputes its last token, into a page of its own.
        """
        if not self._share:
            return 0
        leaf = self._tree.leaf_node[request]
        branch = int(self._tree.depth[self._tree.parent[leaf]])
        return min(branch, cached_len) if cached_len == int(self._tree.depth[leaf]) - 1 else branch

    def _claim(self, slot: int, position: int) -> None:
        """Become the one that computes the shared segment at `position`."""
        *shared, own = self._path[slot]
        for segment in shared:
            if segment.owner == slot and segment.is_full:
                segment.owner = NOBODY
            if segment.start <= position < min(segment.end, own.start):
                segment.owner = slot

    def _fill(self, slot: int, segment: Segment, a: int, b: int, token_idx: int) -> None:
        """Pages and writes for positions [a, b) of `segment`; `a` is token `token_idx`."""
        if segment.start + segment.filled != a:
            raise BackendError(f"tokens {a} to {b} do not continue {segment}")
        size, first = self.page_size, segment.start // self.page_size
        if not segment.pages:
            self._open(slot, segment)
        for index in range(first + len(segment.pages), (b - 1) // size + 1):
            self._add_page(slot, segment, index)
        positions = np.arange(a, b)
        pages = np.array(segment.pages, np.int64)[positions // size - first]
        tokens = np.arange(token_idx, token_idx + b - a, dtype=np.int32)
        self._writes.write(tokens, pages * size + positions % size)
        segment.fill(a, b, self._step, token_idx)

    def _open(self, slot: int, segment: Segment) -> None:
        """First page of a segment, with what lies above it in the same page.

        Tokens that this very step computes are written twice, older ones are copied.
        """
        size, index = self.page_size, segment.start // self.page_size
        above = int(self.page_table[slot, index])
        page = self._add_page(slot, segment, index)
        computed_now = [
            (other.step_base + position, page * size + position % size)
            for other in self._path[slot]
            for position in other.computed_in(self._step, index * size, segment.start)
        ]
        if len(computed_now) < segment.start % size:
            self._writes.copy(above, page)
        if computed_now:
            tokens, slots = np.array(computed_now, np.int64).T
            self._writes.write(tokens.astype(np.int32), slots)

    def _add_page(self, slot: int, segment: Segment, index: int) -> int:
        """A page for the tokens from index * page_size on."""
        if self._pool.num_free == 0:
            self._evict()
        self._taken += 1
        page = int(self._pool.take(1)[0])
        segment.pages.append(page)
        self.page_table[slot, index] = page
        return page

    def _evict(self) -> None:
        """Drop the unused prefix that fewest waiting requests need, deepest first.

        A node's count is never above its parent's, so children go before parents.
        """
        idle = [s for s in self._nodes.values() if self._users[s.node] == 0]
        if not idle:
            raise BackendError(f"all {self.num_pages} KV pages are in use")
        self._drop(min(idle, key=lambda s: (self._waiting[s.node], -s.start, s.node)))

    def _drop(self, segment: Segment) -> None:
        self._idle_pages -= len(segment.pages)
        self._pool.give_back(segment.pages)
        del self._nodes[segment.node]


def _count_below(tree: PrefixTree, pending: Int32) -> Int32:
    is_pending = np.zeros(tree.num_requests, np.int32)
    is_pending[pending] = 1
    running = np.concatenate([[0], np.cumsum(is_pending[tree.leaf_order])])
    counts: Int32 = (running[tree.last_leaf] - running[tree.first_leaf]).astype(np.int32)
    return counts
