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
    """Something for a rank, from `giver`."""

    giver: int
    message: Give | GiveRunning


def wish(
    rank: int, ranks: Sequence[RankRecord], held: Holdings, forecast: Forecast, least_gain: float
) -> Wish | None:
    """What makes `rank` and the one with most left of a resource have as much of it.

    `least_gain`: as a share of the time that the slowest rank needs, below which nothing moves; a
    rank that has nothing to do takes less.
    """
    givers = _givers(rank, ranks)
    if not givers:
        return None
    rests = [forecast.rest(r, held.unstarted_of(r)) for r in range(len(ranks))]
    record = ranks[rank]
    least_s = 0.0
    if not record.is_dry:
        least_s = least_gain * max(one.seconds(forecast.cost) for one in rests)
    gaps = []
    for resource in (_COMPUTE, _MEMORY):
        giver = max(givers, key=lambda r: rests[r][resource])
        gaps.append((rests[giver][resource] - rests[rank][resource], resource, giver))
    for gap_s, resource, giver in sorted(gaps, reverse=True):
        if gap_s <= least_s:
            break
        wanted_s = gap_s / (1 / record.speed + 1 / ranks[giver].speed)
        unstarted = _unstarted(giver, resource == _MEMORY, held, forecast)
        if len(unstarted):
            lengths = forecast.lengths(giver)
            moved = requests_to_move(forecast.tree, unstarted, lengths, forecast.cost, wanted_s)
            return Wish(giver, Give(moved))
        if resource == _MEMORY and _is_worth(ranks[giver], record, wanted_s, forecast):
            return Wish(giver, GiveRunning(wanted_s, record.room // 2))
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
    less = _plus(giver.rest, -memory_s).at(giver.speed).seconds(forecast.cost)
    more = _plus(taker.rest, memory_s).at(taker.speed).seconds(forecast.cost)
    before = giver.rest.at(giver.speed).seconds(forecast.cost)
    return bool(np.maximum(less, more) < (1 - _RUNNING_GAIN) * before)


def _plus(rest: Rest, memory_s: float) -> Rest:
    return rest._replace(memory_s=rest.memory_s + memory_s)
