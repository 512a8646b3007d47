"""Who answers which request: hand-over between ranks, deaths, restarts, the end.

Pure: it hears what ranks say and answers with orders. Knows no processes and no clock, so that
real and simulated ranks have the same one. Requests lie with a rank, in the pool, or are done; a
rank that runs out gets whole subtrees that have not begun, from the pool or from the rank that has
most left to do, so that both end together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.launch.messages import Give, Learn, Report, Take
from blendrun.launch.rank_record import Phase, RankRecord
from blendrun.launch.seen_outputs import SeenOutputs
from blendrun.launch.share import last_ones, long_ones, requests_to_move, seconds_of
from blendrun.launch.suspects import Suspects
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import top_subtrees

MOST_RESTARTS = 3  # of a rank, and as many more …
MOST_TRIALS = 12  # … while it is searched for a request that kills its rank
_LOW_FRAC = 0.03  # of what a rank was given last: then it runs out
_LEAST_GAIN = 0.02  # of what the other has left; less moves only to a rank that waits for work
_EARLY_GAIN = 0.05  # likewise, for a rank that has enough for now
_LEVEL_EVERY = 10  # reports, after which a rank hears of others' outputs and may get more
_POOL = -1


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """N requests as they are expected; all of them by request number."""

    tree: PrefixTree
    output_len: Int32  # [N] planned
    learned: npt.NDArray[np.bool_]  # [N] a rank may learn better
    cost: CostModel


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for a rank, the first or another one."""

    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    rank: int
    message: Take | Give | Learn


@dataclass(frozen=True, slots=True)
class Condemn:
    """A request becomes an error row: it killed its rank again when it ran alone."""

    request: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A rank is not started again."""

    rank: int


Order = Start | Send | Condemn | GiveUp


class Coordinator:
    def __init__(self, work: Work, parts: Sequence[Int32]) -> None:
        """`parts`: requests of each rank in planned order; the others are answered already."""
        n = work.tree.num_requests
        self._work, self.ranks = work, [RankRecord() for _ in parts]
        self._stratum, strata = top_subtrees(work.tree)
        self._num_strata = len(strata)
        self._owner = np.full(n, _POOL, np.int32)
        self._begun = np.zeros(n, np.bool_)
        self._done = np.ones(n, np.bool_)
        self._seen = SeenOutputs(len(parts))
        self._suspects = Suspects(n)
        self._place = np.zeros(n, np.int64)  # in planned order
        for rank, part in enumerate(parts):
            self._owner[part], self._done[part] = rank, False
        together = np.concatenate([np.zeros(0, np.int32), *parts])
        self._place[together] = np.arange(len(together))

    @property
    def is_over(self) -> bool:
        return bool(self._done.all())

    @property
    def is_lost(self) -> bool:
        """No rank is left that could do anything."""
        return all(rank.phase in (Phase.LOST, Phase.IDLE) for rank in self.ranks)

    @property
    def num_left(self) -> int:
        return int((~self._done).sum())

    def left_s(self, rank: int) -> float:
        """Seconds that a rank has left to do at the speed it shows."""
        record = self.ranks[rank]
        return float(self._work.cost.overlapped_s(record.compute_s, record.memory_s)) / record.speed

    def begin(self) -> list[Order]:
        """Ranks that have requests start; processes that are up already are named by `loaded`."""
        started = np.unique(self._owner[~self._done])
        for rank in started.tolist():
            self.ranks[rank].phase = Phase.STARTING
        return [Start(rank) for rank in started.tolist()]

    def loaded(self, rank: int) -> list[Order]:
        """A rank is up and has nothing to do."""
        record = self.ranks[rank]
        record.phase = Phase.UP
        mine = self._unstarted(rank)
        if len(mine):
            return [self._take(rank, mine)]
        return self._feed(rank)

    def began(self, requests: Int32) -> None:
        """These are computed next, on the rank with which they lie."""
        self._begun[requests] = True

    def reported(self, rank: int, report: Report) -> list[Order]:
        record = self.ranks[rank]
        record.note(report.figures)
        self._done[report.ended] = True
        figures, learned = report.figures, self._work.learned[report.ended]
        ended = (report.ended[learned], report.ended_output[learned])
        self._seen.note(rank, *ended, figures.learning, figures.learning_age)
        if record.on_trial is not None and self._done[record.on_trial].all():
            record.on_trial = None
        return self._tell(rank) + self._feed(rank) + self._feed_dry(rank)

    def gave(self, rank: int, requests: Int32) -> list[Order]:
        """A rank gives requests back that it was asked for."""
        to = self.ranks[rank].gives_to
        self.ranks[rank].gives_to = None
        if to is None or not self.ranks[to].gets:  # that one is not what it was
            self._owner[requests] = _POOL
            return self._feed_all()
        self.ranks[to].gets = False
        if not len(requests):
            return []
        return [self._take(to, requests), *self._feed_dry(rank)]

    def died(self, rank: int, saved: Int32) -> list[Order]:
        """The process of a rank is gone; `saved`: all requests that it has answered on disk."""
        record = self.ranks[rank]
        self._done[saved] = True
        if record.gives_to is not None:
            self.ranks[record.gives_to].gets = False
        mine = (self._owner == rank) & ~self._done
        running = self._in_order(mine & self._begun)
        self._owner[mine], self._begun[mine] = _POOL, False
        on_trial = record.on_trial is not None
        record.forget_process()
        self._seen.forget_process(rank)
        orders: list[Order] = []
        condemned = self._suspects.accuse(running)
        for request in condemned.tolist():
            self._done[request] = True
            orders.append(Condemn(request))
        # suspects wait for their test, with nobody
        if len(running):
            self._owner[running] = len(self.ranks)
        record.trials += on_trial
        record.restarts += not on_trial
        if record.restarts > MOST_RESTARTS or record.trials > MOST_TRIALS:
            record.phase = Phase.LOST
            orders.append(GiveUp(rank))
            return orders + self._feed_all()
        if not self.is_over:
            record.phase = Phase.STARTING
            orders.append(Start(rank))
        return orders + self._feed_all()

    def _feed_all(self) -> list[Order]:
        return [order for rank in range(len(self.ranks)) for order in self._feed(rank)]

    def _feed_dry(self, but: int) -> list[Order]:
        """For ranks that have said that nothing is left with them, and say no more."""
        dry = [r for r, one in enumerate(self.ranks) if r != but and one.is_dry]
        return [order for rank in dry for order in self._feed(rank)]

    def _feed(self, rank: int) -> list[Order]:
        """More to do for a rank that runs out."""
        record = self.ranks[rank]
        if record.phase is not Phase.UP or record.gets or record.gives_to is not None:
            return []
        if record.on_trial is not None:
            return []
        if record.waiting > _LOW_FRAC * record.had:
            if record.reports % _LEVEL_EVERY or len(self.ranks) == 1:
                return []
            return self._feed_long(rank) or self._feed_from_other(rank, _EARLY_GAIN)
        if record.is_dry and self._suspects:
            group = self._suspects.next_group()
            record.on_trial = group
            return [self._take(rank, group)]
        pool = self._unstarted(_POOL)
        if len(pool):
            return self._feed_from_pool(rank, pool)
        return self._feed_from_other(rank)

    def _feed_from_pool(self, rank: int, pool: Int32) -> list[Order]:
        """As much as makes all ranks end together."""
        work, lengths = self._work, self._lengths(None)
        up = [r for r, one in enumerate(self.ranks) if one.phase in (Phase.UP, Phase.STARTING)]
        pool_s = seconds_of(work.tree, pool, lengths, work.cost)
        left = sorted(self.left_s(r) for r in up)
        level, below = 0.0, 0.0
        for count, one in enumerate(left, start=1):  # fill the lowest first
            below += one
            level = (pool_s + below) / count
            if count == len(left) or level <= left[count]:
                break
        wanted_s = level - self.left_s(rank)
        if wanted_s <= 0 and not self.ranks[rank].is_dry:
            return []
        if wanted_s >= pool_s:
            return [self._take(rank, pool)]
        moved = requests_to_move(work.tree, pool, lengths, work.cost, max(wanted_s, 0.0))
        return [self._take(rank, moved)]

    def _feed_from_other(self, rank: int, least_gain: float = _LEAST_GAIN) -> list[Order]:
        """From the rank that has most left to do: what makes both end together."""
        unstarted = np.bincount(
            self._owner[~self._done & ~self._begun & (self._owner >= 0)],
            minlength=len(self.ranks) + 1,
        )
        givers = [r for r in self._givers(rank) if unstarted[r]]
        if not givers:
            return []
        giver = max(givers, key=self._rest_s)
        record, other = self.ranks[rank], self.ranks[giver]
        gap_s = self._rest_s(giver) - self.left_s(rank)
        if gap_s <= 0 or (not record.is_dry and gap_s < least_gain * self._rest_s(giver)):
            return []
        wanted_s = gap_s / (1 / record.speed + 1 / other.speed)
        theirs, work = self._unstarted(giver), self._work
        moved = requests_to_move(work.tree, theirs, self._lengths(giver), work.cost, wanted_s)
        if other.phase is Phase.STARTING:
            return [self._take(rank, moved)]
        other.gives_to, record.gets = rank, True
        return [Send(giver, Give(moved))]

    def _feed_long(self, rank: int) -> list[Order]:
        """Long outputs for a rank that has begun all of its own, while others still have some.

        They take longest, and where they begin late all ranks wait for the last one.
        """
        work = self._work
        is_long, memory_s = long_ones(work.tree, self._lengths(None), work.cost)
        unstarted = is_long & ~self._done & ~self._begun & (self._owner >= 0)
        left_s = np.bincount(
            self._owner[unstarted], memory_s[unstarted], minlength=len(self.ranks) + 1
        )
        share_s = memory_s.sum() / len(self.ranks)
        givers = [r for r in self._givers(rank) if self.ranks[r].phase is Phase.UP]
        giver = max(givers, key=lambda r: left_s[r], default=rank)
        if left_s[rank] > 0 or left_s[giver] < _LEAST_GAIN * share_s:
            return []
        theirs = self._in_order(unstarted & (self._owner == giver))
        moved = last_ones(theirs, memory_s, left_s[giver] / 2)
        if not len(moved):
            return []
        self.ranks[giver].gives_to, self.ranks[rank].gets = rank, True
        return [Send(giver, Give(moved))]

    def _givers(self, rank: int) -> list[int]:
        """Ranks that can be asked for requests."""
        return [
            r
            for r, other in enumerate(self.ranks)
            if r != rank and other.gives_to is None and other.on_trial is None
            and not other.gets and other.phase in (Phase.UP, Phase.STARTING)
        ]  # fmt: skip

    def _rest_s(self, rank: int) -> float:
        """As `left_s`, also of a rank that is not up yet."""
        if self.ranks[rank].phase is Phase.UP:
            return self.left_s(rank)
        work = self._work
        return seconds_of(work.tree, self._unstarted(rank), self._lengths(None), work.cost)

    def _take(self, rank: int, requests: Int32) -> Send:
        """`requests` lie with `rank` from now on."""
        record = self.ranks[rank]
        requests = requests[np.argsort(self._place[requests])]
        self._owner[requests] = rank
        record.had = record.waiting + len(requests)
        record.waiting += len(requests)
        return Send(rank, Take(requests))

    def _tell(self, rank: int) -> list[Order]:
        """What others have seen of output lengths, every so often."""
        if self.ranks[rank].reports % _LEVEL_EVERY != 1:
            return []
        news = self._seen.news_for(rank)
        return [Send(rank, Learn(news))] if news else []

    def _lengths(self, rank: int | None) -> Int32:
        """Output lengths that are expected now, [N]: as the ranks have learned them."""
        total, known = np.zeros(self._num_strata), np.zeros(self._num_strata)
        for number, record in enumerate(self.ranks):
            if len(record.mean_len) and rank in (None, number):
                total += record.mean_len
                known += record.mean_len > 0
        mean = (total / np.maximum(known, 1))[self._stratum]
        knows = self._work.learned & (known > 0)[self._stratum]
        return np.where(knows, np.maximum(mean, 1), self._work.output_len).astype(np.int32)

    def _unstarted(self, owner: int) -> Int32:
        return self._in_order((self._owner == owner) & ~self._done & ~self._begun)

    def _in_order(self, chosen: npt.NDArray[np.bool_]) -> Int32:
        requests = np.flatnonzero(chosen).astype(np.int32)
        ordered: Int32 = requests[np.argsort(self._place[requests])]
        return ordered
