"""Which requests go from one rank to another, so that all have as much left to do of each resource.

Compute and KV reads are levelled apart: ranks that have the same of both end together, each with
the job's own mix to the end. Requests that have not begun move first. Where a rank has only
running ones left, KV reads move with these, at the cost of computing again what they have: how
long outputs are is known when they end, and by then the longest run on whichever rank began them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from blendrun.launch.holdings import Holdings
from blendrun.launch.messages import Give, GiveRunning
from blendrun.launch.rank_record import Phase, RankRecord
from blendrun.launch.rest import Rest
from blendrun.launch.share import requests_to_move, sparse_ones
from blendrun.launch.work import Forecast
from blendrun.tree.prefix_tree import Int32

_COMPUTE, _MEMORY = 0, 1  # places in `Rest`
_RUNNING_GAIN = 0.05  # of what the giver has left, for which running requests move


class Wish(NamedTuple):
    """Something for a rank, from `giver`, and what it takes."""

    giver: int
    message: Give | GiveRunning
    moved: Rest


def wish(
    rank: int, ranks: Sequence[RankRecord], held: Holdings, forecast: Forecast, least_gain: float
) -> Wish | None:
    """What brings `rank`, or the one with most left of a resource, to the mean of all.

    `least_gain`: as a share of the time that the slowest rank needs, below which nothing moves; a
    rank that has nothing to do takes less.
    """
    givers = _givers(rank, ranks)
    if not givers:
        return None
    takes_part = [one.phase in (Phase.UP, Phase.STARTING) for one in ranks]
    speed = np.array([one.speed for one in ranks]) * takes_part
    rests = [forecast.rest(r) for r in range(len(ranks))]
    least_s = 0.0
    if not ranks[rank].is_dry:
        least_s = least_gain * max(one.seconds(forecast.cost) for one in rests)
    gaps = []
    for resource in (_COMPUTE, _MEMORY):
        left_s = np.array([one[resource] for one in rests])
        giver = max(givers, key=lambda r, left_s=left_s: left_s[r])  # type: ignore[misc]
        mean_s = left_s @ speed / speed.sum()
        wanted_s = min(
            speed[rank] * (mean_s - left_s[rank]), speed[giver] * (left_s[giver] - mean_s)
        )
        if wanted_s > 0 and left_s[giver] - left_s[rank] > least_s:
            gaps.append((float(wanted_s), resource, giver))
    for wanted_s, resource, giver in sorted(gaps, reverse=True):
        message = _request(ranks[giver], ranks[rank], giver, resource, wanted_s, held, forecast)
        if message is not None:
            moved = Rest(0.0, wanted_s) if resource == _MEMORY else Rest(wanted_s, 0.0)
            return Wish(giver, message, moved)
    return None


def _request(
    giver: RankRecord, taker: RankRecord, rank: int, resource: int, wanted_s: float,
    held: Holdings, forecast: Forecast,
) -> Give | GiveRunning | None:  # fmt: skip
    """What to ask `giver`, which is `rank`, for; None: it has nothing that could go."""
    unstarted = _unstarted(rank, resource == _MEMORY, held, forecast)
    if len(unstarted):
        lengths, cost = forecast.lengths(rank), forecast.cost
        return Give(requests_to_move(forecast.tree, unstarted, lengths, cost, wanted_s))
    if resource == _MEMORY and _is_worth(giver, taker, wanted_s, forecast):
        return GiveRunning(wanted_s, taker.room // 2)
    return None


def _givers(rank: int, ranks: Sequence[RankRecord]) -> list[int]:
    """Ranks that can be asked for requests."""
    return [
        r
        for r, other in enumerate(ranks)
        if r != rank and other.gives_to is None and other.on_trial is None
        and not other.gets and other.phase in (Phase.UP, Phase.STARTING)
    ]  # fmt: skip


def _unstarted(rank: int, is_sparse: bool, held: Holdings, forecast: Forecast) -> Int32:
    """Requests of `rank` that have not begun, of the side that uses one resource most.

    Of the top subtree only of which there is most, so that few prefixes are repeated.
    """
    theirs, lengths = held.unstarted_of(rank), forecast.lengths(rank)
    if len(theirs):
        sparse = sparse_ones(forecast.tree, lengths, forecast.cost)
        theirs = theirs[sparse[theirs] == is_sparse]
    if len(theirs):
        tree, stratum = forecast.tree, forecast.stratum[theirs]
        own_len = tree.edge_len[tree.leaf_node[theirs]] + lengths[theirs]
        theirs = theirs[stratum == np.bincount(stratum, own_len).argmax()]
    return theirs


def _is_worth(giver: RankRecord, taker: RankRecord, memory_s: float, forecast: Forecast) -> bool:
    """Whether both end sooner when running requests with so many KV reads move."""
    if giver.phase is not Phase.UP or giver.running < 2 or not taker.reports:
        return False
    moved = Rest(0.0, memory_s)
    less = giver.rest.less(moved).at(giver.speed).seconds(forecast.cost)
    more = taker.rest.plus(moved).at(taker.speed).seconds(forecast.cost)
    before = giver.rest.at(giver.speed).seconds(forecast.cost)
    return bool(max(less, more) < (1 - _RUNNING_GAIN) * before)
