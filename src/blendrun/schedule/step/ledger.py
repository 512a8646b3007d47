"""Counts KV pages: of prefix nodes, of running requests, free, promised. Compiled.

Which page is whose is the engine's business; it follows what is decided here. A node's edge [s, e)
takes the pages from s // page_size on, and so does what a request computes for itself, so a page in
which a prefix ends is there twice. With pages of one token everything is exact.
"""

from blendrun.compiled import compiled
from blendrun.schedule.step.state import NOBODY, ROOT, State


@compiled
def num_pages(start: int, end: int, page_size: int) -> int:
    """Pages of tokens [start, end)."""
    if end <= start:
        return 0
    return (end - 1) // page_size - start // page_size + 1


@compiled
def available_pages(state: State) -> int:
    """Pages to be had now: unneeded prefixes dropped, promised ones left out."""
    counts = state.counts
    return counts.free_pages + counts.idle_pages - counts.promised_pages


@compiled
def own_pages(state: State, slot: int) -> int:
    """Pages that a running request holds for itself."""
    slots = state.slots
    return num_pages(slots.own_start[slot], slots.computed[slot], state.limits.page_size)


@compiled
def node_pages(state: State, node: int) -> int:
    nodes = state.nodes
    start = nodes.start[node]
    return num_pages(start, start + nodes.filled[node], state.limits.page_size)


@compiled
def match(state: State, request: int) -> tuple[int, bool]:
    """Leading tokens that are cached, and whether a running request computes what comes next.

    One token is always left to compute, since its logits are needed.
    """
    nodes, columns = state.nodes, state.requests
    cached, filling = 0, False
    node, below = columns.node[request], NOBODY
    while node != ROOT:
        if nodes.filled[node] > 0:
            cached = nodes.start[node] + nodes.filled[node]
            if cached < nodes.end[node]:
                filling = nodes.owner[node] != NOBODY
            else:
                filling = below != NOBODY and nodes.owner[below] != NOBODY
            break
        below = node
        node = nodes.parent[node]
    if node == ROOT and below != NOBODY:
        filling = nodes.owner[below] != NOBODY
    return min(cached, columns.known_len[request] - 1), filling


@compiled
def own_start_of(state: State, request: int, cached: int) -> int:
    """First token in pages of the request's own.

    A prompt that is cached to its end recomputes its last token, into a page of its own.
    """
    columns = state.requests
    branch = columns.branch_len[request]
    if cached == columns.prompt_len[request] - 1:
        return min(branch, cached)
    return branch


@compiled
def prefix_pages(state: State, request: int, cached: int) -> int:
    """New pages for the shared part of a request whose first `cached` tokens are there."""
    nodes, size = state.nodes, state.limits.page_size
    own_start = own_start_of(state, request, cached)
    count = 0
    node = state.requests.node[request]
    while node != ROOT:
        end = min(nodes.end[node], own_start)
        if end > cached:
            start = nodes.start[node]
            count += num_pages(start, end, size) - num_pages(start, cached, size)
        node = nodes.parent[node]
    return count


@compiled
def prefill_pages(state: State, request: int, cached: int) -> int:
    """New pages until all known tokens are computed, and the next one has a place."""
    own_start = own_start_of(state, request, cached)
    known_len = state.requests.known_len[request]
    own = num_pages(own_start, known_len + 1, state.limits.page_size)
    return prefix_pages(state, request, cached) + own


@compiled
def idle_pages_on_path(state: State, request: int) -> int:
    """Pages on a request's path that are to be had now, but not once it runs."""
    nodes, count = state.nodes, 0
    node = state.requests.node[request]
    while node != ROOT:
        if nodes.users[node] == 0:
            count += node_pages(state, node)
        node = nodes.parent[node]
    return count


@compiled
def enter(state: State, slot: int, request: int, cached: int) -> None:
    """Give `request` the row `slot`: its pages are promised, its prefix stays."""
    nodes, slots, counts = state.nodes, state.slots, state.counts
    slots.promised[slot] = prefill_pages(state, request, cached)
    counts.promised_pages += slots.promised[slot]
    slots.goal[slot] = state.requests.known_len[request]
    slots.own_start[slot] = own_start_of(state, request, cached)
    slots.computed[slot] = cached
    node = state.requests.node[request]
    while node != ROOT:
        if nodes.users[node] == 0:
            counts.idle_pages -= node_pages(state, node)
        nodes.users[node] += 1
        nodes.waiting[node] -= 1
        node = nodes.parent[node]
    _claim(state, slot, cached)


@compiled
def fill(state: State, slot: int, end: int) -> None:
    """Take pages for the tokens up to `end` of a prefill; they count as cached from now on."""
    nodes, slots, size = state.nodes, state.slots, state.limits.page_size
    start, own_start = slots.computed[slot], slots.own_start[slot]
    before = own_pages(state, slot)
    node = state.requests.node[slots.request[slot]]
    while node != ROOT:
        a = max(start, nodes.start[node])
        b = min(end, nodes.end[node], own_start)
        if a < b:
            first = nodes.start[node]
            added = num_pages(first, b, size) - num_pages(first, a, size)
            if nodes.filled[node] == 0:
                _settle(state, node)
            nodes.filled[node] = b - first
            state.counts.node_pages += added
            _take(state, added, slot)
        node = nodes.parent[node]
    slots.computed[slot] = end
    _take(state, own_pages(state, slot) - before, slot)
    slots.computed[slot] = start  # the step is not computed yet
    _claim(state, slot, end)
    if end >= slots.goal[slot]:
        state.counts.promised_pages -= slots.promised[slot]
        slots.promised[slot] = 0


@compiled
def grow(state: State, count: int) -> None:
    """Take `count` pages for decodes."""
    _make_room(state, count)
    state.counts.free_pages -= count


@compiled
def leave(state: State, slot: int, finished: bool) -> None:
    """Free the own pages of a request that ends, or that waits again."""
    nodes, slots, counts = state.nodes, state.slots, state.counts
    counts.free_pages += own_pages(state, slot)
    counts.promised_pages -= slots.promised[slot]
    slots.promised[slot] = 0
    node = state.requests.node[slots.request[slot]]
    while node != ROOT:
        if nodes.owner[node] == slot:
            nodes.owner[node] = NOBODY
        nodes.users[node] -= 1
        if not finished:
            nodes.waiting[node] += 1
        if nodes.users[node] == 0:
            counts.idle_pages += node_pages(state, node)
            if nodes.waiting[node] == 0:
                _drop(state, node)
        node = nodes.parent[node]


@compiled
def forget(state: State, request: int) -> None:
    """A waiting request will never run."""
    nodes = state.nodes
    node = state.requests.node[request]
    while node != ROOT:
        nodes.waiting[node] -= 1
        if nodes.waiting[node] == 0 and nodes.users[node] == 0:
            _drop(state, node)
        node = nodes.parent[node]


@compiled
def _take(state: State, count: int, slot: int) -> None:
    """Pages that were promised to `slot`."""
    if count > 0:
        _make_room(state, count)
        state.counts.free_pages -= count
        kept = min(count, state.slots.promised[slot])
        state.slots.promised[slot] -= kept
        state.counts.promised_pages -= kept


@compiled
def _claim(state: State, slot: int, position: int) -> None:
    """Become the one that computes the node at `position`."""
    nodes, own_start = state.nodes, state.slots.own_start[slot]
    node = state.requests.node[state.slots.request[slot]]
    while node != ROOT:
        if nodes.owner[node] == slot and nodes.start[node] + nodes.filled[node] >= nodes.end[node]:
            nodes.owner[node] = NOBODY
        if nodes.start[node] <= position < min(nodes.end[node], own_start):
            nodes.owner[node] = slot
        node = nodes.parent[node]


@compiled
def _settle(state: State, node: int) -> None:
    nodes, counts = state.nodes, state.counts
    nodes.place[node] = counts.num_resident
    nodes.resident[counts.num_resident] = node
    counts.num_resident += 1


@compiled
def _make_room(state: State, count: int) -> None:
    """Drop unused prefixes until `count` pages are free.

    The one that fewest waiting requests need goes first, the deepest first among equals. A node's
    count is never above its parent's, so children go before parents.
    """
    nodes, counts = state.nodes, state.counts
    while counts.free_pages < count and counts.idle_pages > 0:
        worst = NOBODY
        for i in range(counts.num_resident):
            node = nodes.resident[i]
            if nodes.users[node] > 0:
                continue
            if (
                worst == NOBODY
                or nodes.waiting[node] < nodes.waiting[worst]
                or (
                    nodes.waiting[node] == nodes.waiting[worst]
                    and nodes.start[node] > nodes.start[worst]
                )
            ):
                worst = node
        if worst == NOBODY:
            return
        _drop(state, worst)


@compiled
def _drop(state: State, node: int) -> None:
    """Give the pages of a node without users back."""
    nodes, counts, limits = state.nodes, state.counts, state.limits
    if nodes.filled[node] == 0:
        return
    pages, start = node_pages(state, node), nodes.start[node]
    if nodes.waiting[node] > 0:  # it will be computed again
        end = start + nodes.filled[node]
        counts.prefill_s += limits.token_s * (end - start)
        counts.prefill_s += limits.pair_s * (float(end) ** 2 - float(start) ** 2)
    counts.idle_pages -= pages
    counts.free_pages += pages
    counts.node_pages -= pages
    last = nodes.resident[counts.num_resident - 1]
    place = nodes.place[node]
    nodes.resident[place] = last
    nodes.place[last] = place
    counts.num_resident -= 1
    nodes.filled[node] = 0
    state.step.dropped[counts.num_dropped] = node
    counts.num_dropped += 1
