"""Counts KV pages: of prefix nodes, of running requests, free, promised. Compiled.

Which page is whose is the engine's business; it follows what is decided here. A node's edge [s, e)
takes the pages from s // page_size on, and so does what a request computes for itself, so a page in
which a prefix ends is there twice. With pages of one token everything is exact.
"""

from blendrun.compiled import compiled_part
from blendrun.schedule.step.state import NOBODY, ROOT, State


@compiled_part
def num_pages(start: int, end: int, page_size: int) -> int:
    """Pages of tokens [start, end)."""
    if end <= start:
        return 0
    return (end - 1) // page_size - start // page_size + 1


@compiled_part
def available_pages(state: State) -> int:
    """Pages to be had now: unneeded prefixes dropped, promised ones left out."""
    counts = state.counts
    return counts.free_pages + counts.idle_pages - counts.promised_pages


@compiled_part
def decode_pages(state: State) -> int:
    """New pages for the next token of every request that decodes."""
    slots, size, count = state.slots, state.limits.page_size, 0
    for i in range(state.counts.num_running):
        slot = state.ordered.by_age[i]
        computed = slots[slot].computed
        if slots[slot].decoding and (computed % size == 0 or computed == slots[slot].own_start):
            count += 1
    return count


@compiled_part
def own_pages(state: State, slot: int) -> int:
    """Pages that a running request holds for itself."""
    slots = state.slots
    return num_pages(slots[slot].own_start, slots[slot].computed, state.limits.page_size)


@compiled_part
def node_pages(state: State, node: int) -> int:
    nodes = state.nodes
    start = nodes[node].start
    return num_pages(start, start + nodes[node].filled, state.limits.page_size)


@compiled_part
def match(state: State, request: int) -> tuple[int, bool]:
    """Leading tokens that are cached, and whether a running request computes what comes next.

    One token is always left to compute, since its logits are needed.
    """
    nodes, columns = state.nodes, state.requests
    cached, filling = 0, False
    node, below = columns[request].node, NOBODY
    while node != ROOT:
        if nodes[node].filled > 0:
            cached = nodes[node].start + nodes[node].filled
            if cached < nodes[node].end:
                filling = nodes[node].owner != NOBODY
            else:
                filling = below != NOBODY and nodes[below].owner != NOBODY
            break
        if nodes[node].start < nodes[node].end:  # nobody computes an empty one
            below = node
        node = nodes[node].parent
    if node == ROOT and below != NOBODY:
        filling = nodes[below].owner != NOBODY
    return min(cached, columns[request].known_len - 1), filling


@compiled_part
def own_start_of(state: State, request: int, cached: int) -> int:
    """First token in pages of the request's own.

    A prompt that is cached to its end recomputes its last token, into a page of its own.
    """
    columns = state.requests
    branch = columns[request].branch_len
    if cached == columns[request].prompt_len - 1:
        return min(branch, cached)
    return branch


@compiled_part
def prefix_pages(state: State, request: int, cached: int) -> int:
    """New pages for the shared part of a request whose first `cached` tokens are there."""
    nodes, size = state.nodes, state.limits.page_size
    own_start = own_start_of(state, request, cached)
    count = 0
    node = state.requests[request].node
    while node != ROOT:
        end = min(nodes[node].end, own_start)
        if end > cached:
            start = nodes[node].start
            count += num_pages(start, end, size) - num_pages(start, cached, size)
        node = nodes[node].parent
    return count


@compiled_part
def prefill_pages(state: State, request: int, cached: int) -> int:
    """New pages until all known tokens are computed, and the next one has a place."""
    own_start = own_start_of(state, request, cached)
    known_len = state.requests[request].known_len
    own = num_pages(own_start, known_len + 1, state.limits.page_size)
    return prefix_pages(state, request, cached) + own


@compiled_part
def idle_pages_on_path(state: State, request: int) -> int:
    """Pages on a request's path that are to be had now, but not once it runs."""
    nodes, count = state.nodes, 0
    node = state.requests[request].node
    while node != ROOT:
        if nodes[node].users == 0:
            count += node_pages(state, node)
        node = nodes[node].parent
    return count


@compiled_part
def enter(state: State, slot: int, request: int, cached: int) -> None:
    """Give `request` the row `slot`: its pages are promised, its prefix stays."""
    nodes, slots, counts = state.nodes, state.slots, state.counts
    slots[slot].promised = prefill_pages(state, request, cached)
    counts.promised_pages += slots[slot].promised
    slots[slot].goal = state.requests[request].known_len
    slots[slot].own_start = own_start_of(state, request, cached)
    slots[slot].computed = cached
    node = state.requests[request].node
    while node != ROOT:
        if nodes[node].users == 0:
            counts.idle_pages -= node_pages(state, node)
        nodes[node].users += 1
        nodes[node].waiting -= 1
        node = nodes[node].parent
    _claim(state, slot, cached)


@compiled_part
def fill(state: State, slot: int, end: int) -> None:
    """Take pages for the tokens up to `end` of a prefill; they count as cached from now on."""
    nodes, slots, size = state.nodes, state.slots, state.limits.page_size
    start, own_start = slots[slot].computed, slots[slot].own_start
    before = own_pages(state, slot)
    node = state.requests[slots[slot].request].node
    while node != ROOT:
        a = max(start, nodes[node].start)
        b = min(end, nodes[node].end, own_start)
        if a < b:
            first = nodes[node].start
            added = num_pages(first, b, size) - num_pages(first, a, size)
            if nodes[node].filled == 0:
                _settle(state, node)
            nodes[node].filled = b - first
            state.counts.node_pages += added
            _take(state, added, slot)
        node = nodes[node].parent
    slots[slot].computed = end
    _take(state, own_pages(state, slot) - before, slot)
    slots[slot].computed = start  # the step is not computed yet
    _claim(state, slot, end)
    if end >= slots[slot].goal:
        state.counts.promised_pages -= slots[slot].promised
        slots[slot].promised = 0


@compiled_part
def grow(state: State, count: int) -> None:
    """Take `count` pages for decodes."""
    _make_room(state, count)
    state.counts.free_pages -= count


@compiled_part
def leave(state: State, slot: int, finished: bool) -> None:
    """Free the own pages of a request that ends, or that waits again."""
    nodes, slots, counts = state.nodes, state.slots, state.counts
    counts.free_pages += own_pages(state, slot)
    counts.promised_pages -= slots[slot].promised
    slots[slot].promised = 0
    node = state.requests[slots[slot].request].node
    while node != ROOT:
        if nodes[node].owner == slot:
            nodes[node].owner = NOBODY
        nodes[node].users -= 1
        if not finished:
            nodes[node].waiting += 1
        if nodes[node].users == 0:
            counts.idle_pages += node_pages(state, node)
            if nodes[node].waiting == 0:
                _drop(state, node)
        node = nodes[node].parent


@compiled_part
def begin_reading(state: State, slot: int) -> None:
    """A request decodes from now on: what others read of its prefix, it does not."""
    nodes = state.nodes
    node = state.requests[state.slots[slot].request].node
    while node != ROOT:
        if nodes[node].readers > 0:
            state.counts.spared += nodes[node].end - nodes[node].start
        nodes[node].readers += 1
        node = nodes[node].parent


@compiled_part
def end_reading(state: State, slot: int) -> None:
    """The opposite of `begin_reading`."""
    nodes = state.nodes
    node = state.requests[state.slots[slot].request].node
    while node != ROOT:
        nodes[node].readers -= 1
        if nodes[node].readers > 0:
            state.counts.spared -= nodes[node].end - nodes[node].start
        node = nodes[node].parent


@compiled_part
def forget(state: State, request: int) -> None:
    """A waiting request will never run."""
    nodes = state.nodes
    node = state.requests[request].node
    while node != ROOT:
        nodes[node].waiting -= 1
        if nodes[node].waiting == 0 and nodes[node].users == 0:
            _drop(state, node)
        node = nodes[node].parent


@compiled_part
def _take(state: State, count: int, slot: int) -> None:
    """Pages that were promised to `slot`."""
    if count > 0:
        _make_room(state, count)
        state.counts.free_pages -= count
        kept = min(count, state.slots[slot].promised)
        state.slots[slot].promised -= kept
        state.counts.promised_pages -= kept


@compiled_part
def _claim(state: State, slot: int, position: int) -> None:
    """Become the one that computes the node at `position`."""
    nodes, own_start = state.nodes, state.slots[slot].own_start
    node = state.requests[state.slots[slot].request].node
    while node != ROOT:
        if nodes[node].owner == slot and nodes[node].start + nodes[node].filled >= nodes[node].end:
            nodes[node].owner = NOBODY
        if nodes[node].start <= position < min(nodes[node].end, own_start):
            nodes[node].owner = slot
        node = nodes[node].parent


@compiled_part
def _settle(state: State, node: int) -> None:
    nodes, counts = state.nodes, state.counts
    nodes[node].place = counts.num_resident
    state.ordered.resident[counts.num_resident] = node
    counts.num_resident += 1


@compiled_part
def _make_room(state: State, count: int) -> None:
    """Drop unused prefixes until `count` pages are free.

    The one that fewest waiting requests need goes first, the deepest first among equals. A node's
    count is never above its parent's, so children go before parents.
    """
    nodes, counts = state.nodes, state.counts
    while counts.free_pages < count and counts.idle_pages > 0:
        worst = NOBODY
        for i in range(counts.num_resident):
            node = state.ordered.resident[i]
            if nodes[node].users > 0:
                continue
            if (
                worst == NOBODY
                or nodes[node].waiting < nodes[worst].waiting
                or (
                    nodes[node].waiting == nodes[worst].waiting
                    and nodes[node].start > nodes[worst].start
                )
            ):
                worst = node
        if worst == NOBODY:
            return
        _drop(state, worst)


@compiled_part
def _drop(state: State, node: int) -> None:
    """Give the pages of a node without users back."""
    nodes, counts, limits = state.nodes, state.counts, state.limits
    if nodes[node].filled == 0:
        return
    pages, start = node_pages(state, node), nodes[node].start
    if nodes[node].waiting > 0:  # it will be computed again
        end = start + nodes[node].filled
        counts.prefill_s += limits.token_s * (end - start)
        counts.prefill_s += limits.pair_s * (float(end) ** 2 - float(start) ** 2)
    counts.idle_pages -= pages
    counts.free_pages += pages
    counts.node_pages -= pages
    last = state.ordered.resident[counts.num_resident - 1]
    place = nodes[node].place
    state.ordered.resident[place] = last
    nodes[last].place = place
    counts.num_resident -= 1
    nodes[node].filled = 0
    state.step.dropped[counts.num_dropped] = node
    counts.num_dropped += 1
