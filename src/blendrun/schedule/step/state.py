"""The columns that a step's decision reads and writes.

Plain arrays in named tuples, scalars in one-row records, so that compiled functions share them
with Python without copies. A *request* is a number of the plan, a *slot* a row of the engine's
page table, a *node* one of the prefix tree. Lengths are tokens.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32, Int64

Int8 = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]
Record = Any  # one row of a structured array

NOBODY = -1
ROOT = 0

WAITING, RUNNING, DONE = 0, 1, 2  # of a request
LEFT, RIGHT = 0, 1
UNLEARNED = -1  # stratum of a request whose length is known or stays as planned

ONE_LIST, TWO_ENDED, TWO_LISTS = 0, 1, 2  # how requests come in
FIXED, RATIO = 0, 1  # what a step's prefill is cut to


class Requests(NamedTuple):
    """[N] by request number."""

    prompt_len: Int32
    known_len: Int32  # prompt and generated tokens
    branch_len: Int32  # prompt tokens above its leaf, which others may have, too
    node: Int32  # lowest node above its leaf; ROOT: it shares nothing
    computed_before: Int32  # tokens whose K and V a preemption has lost
    num_cached: Int32  # at first admission; -1 before
    max_output: Int32
    planned_output: Float64  # output tokens that the plan expects
    stratum: Int32  # whose learned lengths stand for it
    footprint: Float64  # KV tokens of its own over its life, on average
    density: Float64  # as planned
    prefill_s: Float64  # compute of its prompt, with its share of shared prefixes
    status: Int8
    side: Int8
    num_preempted: Int8


class Nodes(NamedTuple):
    """[K] by tree node; leaves are unused. A node is filled from its start on, by one slot."""

    parent: Int32
    start: Int32  # positions [start, end)
    end: Int32
    filled: Int32  # tokens whose K and V exist, or will when this step reads them
    users: Int32  # running requests below
    waiting: Int32  # other unfinished requests below
    owner: Int32  # slot that is computing it
    resident: Int32  # the nodes that hold pages, in no order; `num_resident` of them
    place: Int32  # of a node in `resident`


class Slots(NamedTuple):
    """[max_seqs] by slot."""

    request: Int32
    computed: Int32  # tokens with K and V
    decoding: Bools  # all known tokens but the last are computed
    own_start: Int32  # first token in pages of its own
    promised: Int64  # pages that its prefill will still take, …
    goal: Int32  # … up to this length
    age: Int64  # admission number
    end_step: Int64  # step after which it is expected to leave
    rest_decodes: Float64  # expected decodes still to do, …
    rest_context: Float64  # … and the context tokens that they will read
    by_age: Int32  # running slots, oldest first
    by_end: Int32  # running slots, soonest end first
    free: Int32  # stack of free slots


class Lists(NamedTuple):
    """Requests that wait, in the order in which they may come in."""

    sample: Int32  # first of all, a few of every subtree
    left: Int32  # the one list or sequence of the other policies is here
    right: Int32  # longest first
    next_right: Int32  # [len(right) + 1] place that still waits at or after one, path-halved
    last_right: Int32  # [len(right) + 1] 1 + the place that still waits before one, path-halved
    back_left: Int32  # stack of preempted requests
    back_right: Int32


class Lengths(NamedTuple):
    """Survival of output lengths, by stratum and bin; bins are [edge[b], edge[b + 1])."""

    edge: Float64  # [B + 1]
    events: Float64  # [S, B] outputs that ended in the bin
    survival: Float64  # [S, B + 1] share that reaches the bin
    tail: Float64  # [S, B + 1] integral of survival from the bin's edge on
    tail_t: Float64  # [S, B + 1] integral of survival times length
    prior: Float64  # [S] mean of the planned lengths
    finished: Int64  # [S]
    admitted: Int64  # [S]
    mean: Float64  # [S] output tokens, …
    square: Float64  # [S] … and their square, expected of a request that has not begun
    listed_mean: Float64  # [S] as of the last division into left and right


class Step(NamedTuple):
    """What a decision says: entries of the batch, and what happened to pages."""

    slot: Int32  # [max_seqs], decodes first
    num_tokens: Int32  # [max_seqs]
    admitted: Int32  # [max_seqs] slots
    preempted: Int32  # [max_seqs] slots
    dropped: Int32  # [K] nodes


class State(NamedTuple):
    requests: Requests
    nodes: Nodes
    slots: Slots
    lists: Lists
    lengths: Lengths
    step: Step
    counts: Record  # of COUNTS
    limits: Record  # of LIMITS


COUNTS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "step",
            "num_running",
            "num_right",  # running requests from the right
            "num_decoding",
            "num_admitted",  # ever
            "num_finished",
            "finished_right",
            "num_waiting",
            "free_pages",
            "idle_pages",  # of nodes without users
            "promised_pages",
            "node_pages",
            "num_resident",
            "context",  # tokens that the decodes of the next step read, without their own
            "at_sample",  # places in the lists
            "at_left",
            "at_right",  # one past the last of a sequence with two ends
            "num_back_left",
            "num_back_right",
            "num_batch",
            "batch_tokens",
            "num_decodes",
            "num_admits",
            "num_preempts",
            "num_dropped",
            "preemptions",  # ever
            "recomputed",
            "next_refresh",
            "refreshed_finished",
            "listed_finished",
            "pinned_pages",  # worst case of running requests that may not be preempted again
        )
    ]
    + [
        (name, np.float64)
        for name in (
            "prefill_s",  # compute still to do: prompts, …
            "rest_decodes",  # … decodes of all unfinished requests, …
            "rest_context",  # … and the context tokens that these will read
            "left_in_use",  # footprints
            "right_in_use",
            "left_share",  # of memory that the left side needs (two lists)
            "headroom",  # tokens by which every projected moment stays below the cap
        )
    ]
)
LIMITS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "num_pages",
            "page_size",
            "max_seqs",
            "chunk_size",
            "tile",
            "admission",
            "budget",
            "learns",
            "share",
        )
    ]
    + [
        (name, np.float64)
        for name in (
            "token_s",  # compute of a prompt token, …
            "pair_s",  # … and of a pair of positions, per b² - a² of a chunk [a, b)
            "decode_s",  # compute of a decode token, output head included
            "head_s",
            "context_s",  # reading one token of context
            "weight_s",  # reading the weights: no step is shorter
            "root_density",
            "left_slack",
            "overcommit",
        )
    ]
)
