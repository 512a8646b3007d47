"""Who answers which request: hand-over between ranks, deaths, restarts, the end.

Pure: it hears what ranks say and answers with orders. Knows no processes and no clock, so that
real and simulated ranks have the same one. Requests lie with a rank, in the pool, or are done
(`holdings`); what moves from rank to rank says `levelling`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from blendrun.launch.holdings import POOL, SUSPECTED, Holdings
from blendrun.launch.levelling import wish
from blendrun.launch.messages import Give, Learn, Report, Take
from blendrun.launch.orders import Condemn, GiveUp, Order, Send, Start
from blendrun.launch.rank_record import Phase, RankRecord
from blendrun.launch.share import requests_to_move, seconds_of
from blendrun.launch.suspects import Suspects
from blendrun.launch.work import Forecast, Work
from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32

MOST_RESTARTS = 3  # of a rank, and as many more …
MOST_TRIALS = 12  # … while it is searched for a request that kills its rank
_LOW_FRAC = 0.03  # of what a rank was given last: then it runs out
_LEAST_GAIN = 0.02  # of the time left; less moves only to a rank that waits for work
_EARLY_GAIN = 0.05  # likewise, to a rank that has enough for now
_LEVEL_EVERY = 10  # reports, after which a rank may get more


class Coordinator:
    def __init__(self, work: Work, parts: Sequence[Int32]) -> None:
        """`parts`: requests of each rank in planned order; the others are answered already."""
        n = work.tree.num_requests
        self.ranks = [RankRecord() for _ in parts]
        self._held = Holdings(n, parts)
        self._forecast = Forecast(work, self.ranks, self._held)
        self._suspects = Suspects(n)

    @property
    def is_over(self) -> bool:
        return bool(self._held.done.all())

    @property
    def is_lost(self) -> bool:
        """No rank is left that could do anything."""
        return all(rank.phase in (Phase.LOST, Phase.IDLE) for rank in self.ranks)

    @property
    def num_left(self) -> int:
        return int((~self._held.done).sum())

    def left_s(self, rank: int) -> float:
        """Seconds that a rank has left to do at the speed it shows."""
        return self._forecast.rest(rank).seconds(self._forecast.cost)

    def has_work(self, rank: int) -> bool:
        """Whether a rank has requests to answer."""
        return bool(((self._held.owner == rank) & ~self._held.done).any())

    def begin(self) -> list[Order]:
        """Ranks that have requests start; processes that are up already are named by `loaded`."""
        started = np.unique(self._held.owner[~self._held.done])
        for rank in started.tolist():
            self.ranks[rank].phase = Phase.STARTING
        return [Start(rank) for rank in started.tolist()]

    def loaded(self, rank: int) -> list[Order]:
        """A rank is up and has nothing to do."""
        record = self.ranks[rank]
        record.phase = Phase.UP
        mine = self._held.unstarted_of(rank)
        if len(mine):
            return [self._take(rank, mine)]
        return self._feed(rank)

    def began(self, requests: Int32) -> None:
        """These are computed next, on the rank with which they lie."""
        self._held.begun[requests] = True

    def reported(self, rank: int, report: Report) -> list[Order]:
        record = self.ranks[rank]
        record.note(report.figures)
        self._held.done[report.ended] = True
        if record.on_trial is not None and self._held.done[record.on_trial].all():
            record.on_trial = None
        return self._tell(rank) + self._feed(rank) + self._feed_dry(rank)

    def gave(self, rank: int, requests: Int32, answers: pa.Table | None = None) -> list[Order]:
        """A rank gives requests back that it was asked for."""
        to = self.ranks[rank].gives_to
        self.ranks[rank].gives_to = None
        if to is None or not self.ranks[to].gets:  # that one is not what it was
            self._held.move(requests, POOL)
            return self._feed_all()
        self.ranks[to].gets = False
        if not len(requests):
            return []
        return [self._take(to, requests, answers), *self._feed_dry(rank)]

    def died(self, rank: int, saved: Int32) -> list[Order]:
        """The process of a rank is gone; `saved`: all requests that it has answered on disk."""
        record = self.ranks[rank]
        self._held.done[saved] = True
        if record.gives_to is not None:
            self.ranks[record.gives_to].gets = False
        running = self._held.lose(rank)
        on_trial = record.on_trial is not None
        record.forget_process()
        orders: list[Order] = []
        condemned = self._suspects.accuse(running)
        for request in condemned.tolist():
            self._held.done[request] = True
            orders.append(Condemn(request))
        self._held.move(running, SUSPECTED)
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
            if record.reports % _LEVEL_EVERY or not self._is_late(rank):
                return []
            return self._level(rank, _EARLY_GAIN)
        if record.is_dry and self._suspects:
            group = self._suspects.next_group()
            record.on_trial = group
            return [self._take(rank, group)]
        pool = self._held.unstarted_of(POOL)
        if len(pool):
            return self._feed_from_pool(rank, pool)
        return self._level(rank, _LEAST_GAIN)

    def _feed_from_pool(self, rank: int, pool: Int32) -> list[Order]:
        """As much as makes all ranks end together."""
        tree, cost, lengths = self._forecast.tree, self._forecast.cost, self._forecast.lengths()
        up = [r for r, one in enumerate(self.ranks) if one.phase in (Phase.UP, Phase.STARTING)]
        pool_s = seconds_of(tree, pool, lengths, cost)
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
        moved = requests_to_move(tree, pool, lengths, cost, max(wanted_s, 0.0))
        return [self._take(rank, moved)]

    def _is_late(self, rank: int) -> bool:
        """Half of its time is over, and lengths are known well enough to go by.

        Before, what a rank has left is more of a guess than a difference, and can still move later.
        """
        if any(one.is_learning for one in self.ranks):
            return False
        return self.ranks[rank].stepped_s >= self.left_s(rank)

    def _level(self, rank: int, least_gain: float) -> list[Order]:
        """From a rank that has more left to do."""
        found = wish(rank, self.ranks, self._held, self._forecast, least_gain)
        if found is None:
            return []
        giver = self.ranks[found.giver]
        if giver.phase is Phase.STARTING and isinstance(found.message, Give):
            return [self._take(rank, found.message.requests)]
        record = self.ranks[rank]
        giver.gives_to, record.gets = rank, True
        # until both say how much it was: others must not ask for the same
        giver.rest, record.rest = giver.rest.less(found.moved), record.rest.plus(found.moved)
        return [Send(found.giver, found.message)]

    def _tell(self, rank: int) -> list[Order]:
        """What others have seen of output lengths."""
        others = [one.outputs for r, one in enumerate(self.ranks) if r != rank]
        outputs = Outputs.total(others + [one.earlier_outputs for one in self.ranks])
        return [Send(rank, Learn(outputs))] if len(outputs.place) else []

    def _take(self, rank: int, requests: Int32, answers: pa.Table | None = None) -> Send:
        """`requests` lie with `rank` from now on."""
        record = self.ranks[rank]
        requests = self._held.move(requests, rank)
        record.had = record.waiting + len(requests)
        record.waiting += len(requests)
        return Send(rank, Take(requests, answers))
