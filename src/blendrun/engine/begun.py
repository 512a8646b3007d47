"""Answers that have begun: kept when a run stops, and continued by the next attempt.

A continued answer is computed again like a preempted one, prompt and tokens so far in one prefill;
no token is drawn twice. What grows with an answer beside its tokens is made again from them, except
log-probabilities, which are kept.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from blendrun.data.results import keys_of
from blendrun.data.unfinished import UNFINISHED_SCHEMA
from blendrun.engine.growing_answer import TokenLogprob
from blendrun.engine.requests import EngineRequests
from blendrun.tree.prefix_tree import Int32


class Begun(NamedTuple):
    """The answer to `request` so far."""

    request: int
    token_ids: list[int]
    logprobs: list[TokenLogprob]  # of each token, or empty


def begun_table(requests: EngineRequests, answers: Iterable[Begun]) -> pa.Table:
    """Answers that have begun as a table of UNFINISHED_SCHEMA."""
    answers = list(answers)
    request = np.array([answer.request for answer in answers], np.int32)
    chosen, top_ids, top = ([_joined(answer, i) for answer in answers] for i in range(3))
    columns = {
        "row": requests.row[request],
        "output_index": requests.sample[request],
        "token_ids": [answer.token_ids for answer in answers],
        "logprobs": chosen,
        "top_token_ids": top_ids,
        "top_logprobs": top,
    }
    return pa.table(columns, schema=UNFINISHED_SCHEMA)


def _joined(answer: Begun, part: int) -> Any:
    """One part of the log-probabilities of all tokens, one after the other; None without any."""
    parts = [np.atleast_1d(one[part]) for one in answer.logprobs]
    return np.concatenate(parts) if parts else None


def to_continue(
    requests: EngineRequests, running: Int32, twins: Mapping[int, Int32], kept: pa.Table
) -> tuple[list[Begun], pa.Table]:
    """Which of the `kept` answers the `running` requests continue, and what is for later.

    What one of several `twins` has begun, the one that runs continues. An answer that does not fit
    its request is left out, and starts over.
    """
    if not kept.num_rows:
        return [], kept
    keys, by_key = requests.keys, np.argsort(requests.keys)
    found = by_key[np.searchsorted(keys, keys_of(kept), sorter=by_key) % len(keys)]
    takes = np.arange(len(keys))
    for leader, others in twins.items():
        takes[others] = leader
    request = takes[found]
    goes_on = (keys[found] == keys_of(kept)) & np.isin(request, running)
    mine = zip(request[goes_on].tolist(), kept.filter(pa.array(goes_on)).to_pylist(), strict=True)
    answers = [_begun(requests, leader, row) for leader, row in mine]
    begun = {answer.request: answer for answer in answers if answer is not None}
    return list(begun.values()), kept.filter(pa.array(~goes_on))


def _begun(requests: EngineRequests, request: int, row: Mapping[str, list[int]]) -> Begun | None:
    token_ids, k = row["token_ids"], int(requests.logprobs[request])
    num_tokens = len(token_ids)
    if not 0 < num_tokens < requests.max_tokens[request]:
        return None
    if k < 0:
        return Begun(request, token_ids, [])
    if len(row["logprobs"] or ()) != num_tokens or len(row["top_logprobs"]) != num_tokens * k:
        return None
    top_ids = np.array(row["top_token_ids"], np.int32).reshape(num_tokens, k)
    top = np.array(row["top_logprobs"], np.float32).reshape(num_tokens, k)
    logprobs = [TokenLogprob(*one) for one in zip(row["logprobs"], top_ids, top, strict=True)]
    return Begun(request, token_ids, logprobs)
