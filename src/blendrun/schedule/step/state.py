"""The columns that a step's decision reads and writes.

Arrays of records and plain arrays, scalars in one record, so that compiled functions share them
with Python without copies. Few arrays, because each is an argument of every compiled function. A
*request* is a number of the plan, a *slot* a row of the engine's page table, a *node* one of the
prefix tree. Lengths are tokens.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32

Bools = npt.NDArray[np.bool_]
Record = Any  # one row of a structured array

NOBODY = -1
ROOT = 0

WAITING, RUNNING, DONE = 0, 1, 2  # of a request
LEFT, RIGHT = 0, 1
UNLEARNED = -1  # stratum of a request whose length is known or stays as planned

MAX_DENSITY = 1e3  # above this next to no KV is read; the scan from both ends needs a number
ONE_LIST, TWO_ENDED, TWO_LISTS = 0, 1, 2  # how requests come in
FIXED, RATIO = 0, 1  # what a step's prefill is cut to


REQUEST = np.dtype(
    [
        ("prompt_len", np.int32),
        ("known_len", np.int32),  # prompt and generated tokens
        ("branch_len", np.int32),  # prompt tokens above its leaf, which others may have, too
        ("node", np.int32),  # lowest node above its leaf; ROOT: it shares nothing
        ("computed_before", np.int32),  # tokens whose K and V a preemption has lost
        ("num_cached", np.int32),  # at first admission; -1 before
        ("max_output", np.int32),
        ("stratum", np.int32),  # whose learned lengths stand for it
        ("planned_output", np.float64),  # output tokens that the plan expects
        ("footprint", np.float64),  # KV tokens of its own over its life, on average
        ("prefill_s", np.float64),  # compute of its prompt, with its share of shared prefixes
        ("spared_len", np.float64),  # prompt tokens that it need not read: its sharers do
        ("status", np.int8),
        ("side", np.int8),
        ("num_preempted", np.int8),
    ],
    align=True,
)
# a node is filled from its start on, by one slot; leaves are unused
NODE = np.dtype(
    [
        ("parent", np.int32),
        ("start", np.int32),  # positions [start, end)
        ("end", np.int32),
        ("filled", np.int32),  # tokens whose K and V exist, or will when this step reads them
        ("users", np.int32),  # running requests below
        ("readers", np.int32),  # of them, those that decode
        ("waiting", np.int32),  # other unfinished requests below
        ("owner", np.int32),  # slot that is computing it
        ("place", np.int32),  # in the list of resident nodes
    ],
    align=True,
)
SLOT = np.dtype(
    [
        ("request", np.int32),
        ("computed", np.int32),  # tokens with K and V
        ("own_start", np.int32),  # first token in pages of its own
        ("goal", np.int32),  # length up to which its prefill goes, …
        ("promised", np.int64),  # … and pages that it will still take
        ("end_step", np.int64),  # step after which it is expected to leave
        ("overrun", np.float64),  # length that it counts for in `actual_seen`; 0: not yet
        ("rest_decodes", np.float64),  # expected decodes still to do, …
        ("rest_context", np.float64),  # … and the context tokens that they will read
        ("last_chunk", np.int64),  # step of its last prefill chunk
        ("decoding", np.bool_),  # all known tokens but the last are computed
    ],
    align=True,
)
STRATUM = np.dtype(
    [
        ("prior", np.float64),  # mean of the planned lengths
        ("max_output", np.float64),  # no output is longer
        ("running", np.int64),
        ("finished", np.int64),
        ("total", np.int64),
        ("elsewhere", np.int64),  # outputs that have ended in other batchers, …
        ("told", np.bool_),  # … and whether these are enough to go by
        ("mean_len", np.float64),  # output tokens, …
        ("square_len", np.float64),  # … and their square, expected of a request that has not begun
        ("listed_mean", np.float64),  # as of the last division into left and right
    ],
    align=True,
)
# a stretch of a sequence with two ends
UNIT = np.dtype(
    [
        ("density", np.float64),  # MAX_DENSITY at most
        ("prefill_rate", np.float64),  # prompt tokens of its own for each second of KV reads
    ]
)


class Ordered(NamedTuple):
    """Numbers in some order; how many count is in COUNTS."""

    by_age: Int32  # running slots, oldest first
    by_end: Int32  # running slots, soonest end first
    free: Int32  # stack of free slots
    resident: Int32  # nodes that hold pages


class Lists(NamedTuple):
    """Requests that wait, in the order in which they may come in."""

    sample: Int32  # first of all, a few of every subtree
    left: Int32  # the one list or sequence of the other policies is here
    right: Int32  # longest first
    next_right: Int32  # [len(right) + 1] place that still waits at or after one, path-halved
    last_right: Int32  # [len(right) + 1] 1 + the place that still waits before one, path-halved
    back_left: Int32  # stack of preempted requests
    back_right: Int32
    units: Any  # [n] of UNIT, of a sequence with two ends


class Lengths(NamedTuple):
    """Survival of output lengths, by stratum and bin; bins are [edge[b], edge[b + 1])."""

    edge: Float64  # [B + 1]
    events: Float64  # [S, B] outputs that ended in the bin
    before: Float64  # [S, B] likewise, before the run
    elsewhere: Float64  # [S, B] likewise, in other batchers, …
    running_elsewhere: Float64  # [S, B] … and those that run there, by their tokens so far
    survival: Float64  # [S, B + 1] share that reaches the bin
    tail: Float64  # [S, B + 1] integral of survival from the bin's edge on
    tail_t: Float64  # [S, B + 1] integral of survival times length
    strata: Any  # [S] of STRATUM


class Step(NamedTuple):
    """What a decision says: entries of the batch, and what happened to pages."""

    slot: Int32  # [max_seqs], decodes first
    num_tokens: Int32  # [max_seqs]
    admitted: Int32  # [max_seqs] slots
    preempted: Int32  # [max_seqs] slots, …
    sent_back: Int32  # [max_seqs] … and the requests that ran there
    dropped: Int32  # [K] nodes


class State(NamedTuple):
    requests: Any  # [N] of REQUEST
    nodes: Any  # [K] of NODE, by tree node
    slots: Any  # [max_seqs] of SLOT
    ordered: Ordered
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
            "num_finished",
            "num_waiting",
            "free_pages",
            "idle_pages",  # of nodes without users
            "promised_pages",
            "node_pages",
            "num_resident",
            "context",  # tokens that the decodes of the next step read, without their own
            "spared",  # of them, those that are in a shared prefix and another decode reads
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
            "num_unlearned",  # strata of which too little has ended yet, …
            "num_unsure",  # … and those of which more runs than has ended
            "worst_tokens",  # own tokens of running requests at their longest
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
            "bias",  # of planned lengths, as outputs so far have it; 1 or more
            "summed_bias",  # the one in `rest_decodes` and `rest_context`
            "planned_seen",  # planned lengths of outputs that ended or went beyond, …
            "actual_seen",  # … and what these came to, or are expected to
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
            "first_in_prefill",  # the last prefill step makes an output token
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
            "spared_s",  # of it, where another decode of the step reads that token anyway
            "weight_s",  # reading the weights: no step is shorter
            "root_density",
            "left_slack",
            "overcommit",
        )
    ]
)
