"""Greedy requests that must get the same answer: one of them runs for all.

Equal prompts end in empty edges below one node of the prefix tree; what else an answer depends on
are the parameters.
"""

from dataclasses import dataclass

import numpy as np

from blendrun.engine.requests import EngineRequests
from blendrun.tree.prefix_tree import Int32

_COLUMNS = (
    "max_tokens",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "prompt_logprobs",
    "score_start",
)
_RARE = ("stop", "stop_token_ids", "logit_bias", "structure")


@dataclass(frozen=True, slots=True)
class Twins:
    running: Int32  # requests that run, in planned order
    others: dict[int, Int32]  # those that take the answer of one that runs

    @classmethod
    def none(cls, pending: Int32) -> "Twins":
        return cls(pending, {})


def find_twins(requests: EngineRequests, pending: Int32) -> Twins:
    """Twins among the `pending` requests, in planned order; the first of them runs."""
    tree = requests.tree
    leaf = tree.leaf_node[pending]
    above = tree.parent[leaf]
    is_empty = tree.depth[leaf] == tree.depth[above]
    place = np.flatnonzero(is_empty & (requests.temperature[pending] == 0))
    if len(place) < 2:
        return Twins.none(pending)
    candidates = pending[place]
    keys = [above[place], *(getattr(requests, name)[candidates] for name in _COLUMNS)]
    keys += [_codes(getattr(requests, name), candidates) for name in _RARE]
    order = np.lexsort([place, *keys])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    others = {}
    for group in np.split(candidates[order], np.flatnonzero(is_first)[1:]):
        if len(group) > 1:
            others[int(group[0])] = group[1:]
    runs = np.ones(len(pending), np.bool_)
    runs[place[order[~is_first]]] = False
    return Twins(pending[runs], others)


def _codes(rare: dict[int, object], candidates: Int32) -> Int32:
    """A number for each value of a rare parameter; 0 where it is not set."""
    codes = np.zeros(len(candidates), np.int32)
    if rare:
        known: dict[object, int] = {}
        for i, request in enumerate(candidates.tolist()):
            if request in rare:
                codes[i] = known.setdefault(rare[request], len(known) + 1)
    return codes
