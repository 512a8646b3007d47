"""Ranks in virtual time under the coordinator of the real ones.

The rank whose clock is behind goes on, for a small part of the job's time; what it says then, and
what the coordinator answers, takes no time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.engine.figures_of import figures_of
from blendrun.engine.simulated_job import Outcome, Prepared, SimulatedJob, SimulateOptions, prepare
from blendrun.engine.simulation import COMPUTE, MEMORY, SECONDS, Log, Simulated, VirtualRun
from blendrun.errors import BackendError
from blendrun.launch.coordinator import Coordinator
from blendrun.launch.messages import Begun, Give, GiveRunning, Learn, Report, Take
from blendrun.launch.orders import GiveUp, Order, Send, Start
from blendrun.launch.work import Work
from blendrun.schedule.partition import partition
from blendrun.schedule.step.handover import deposited, released, withdrawn
from blendrun.schedule.step.outputs import observed
from blendrun.schedule.step.state import DONE, WAITING
from blendrun.tree.prefix_tree import Int32

_NOTHING = np.zeros(0, np.int32)
_QUANTA = 1000  # of a job, in which a rank runs before others are heard


@dataclass(frozen=True, slots=True)
class Fault:
    """The process of a rank dies at a moment of virtual time."""

    rank: int
    at_s: float


def simulate_job(
    job: SimulatedJob,
    cost: CostModel,
    options: SimulateOptions,
    keep_chunks: bool = False,
    faults: Sequence[Fault] = (),
) -> Outcome:
    """Run `job` under one policy, on `options.dp` ranks.

    Raises:
        CapacityError: a request does not fit into KV memory alone.
        InputError: a setting is not usable.
        BackendError: every rank has died too often.
    """
    prepared = prepare(job, cost, options)
    sequence = np.ascontiguousarray(prepared.order.sequence)
    if options.dp == 1 and not faults:
        run = prepared.rank(sequence, 0, keep_chunks)
        run.advance(Log.new())
        return prepared.outcome([run.result()], [sequence])
    parts = [
        part.requests
        for part in partition(
            prepared.order.tree,
            sequence,
            prepared.planned,
            prepared.cost,
            options.dp,
            prepared.learned,
        )
    ]
    ranks = _VirtualRanks(prepared, parts, keep_chunks)
    ranks.run(sorted(faults, key=lambda fault: fault.at_s))
    return prepared.outcome(*ranks.results())


class _VirtualRank:
    """One process of a rank."""

    def __init__(self, prepared: Prepared, rank: int, begin_s: float, keep_chunks: bool) -> None:
        self._prepared, self._rank, self._keep_chunks = prepared, rank, keep_chunks
        self._begin_s = begin_s
        self.run: VirtualRun | None = None
        n = prepared.job.tree.num_requests
        self.ended, self._begun = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self._mine = np.zeros(n, np.bool_)
        self._stepped_s = self._expected_s = 0.0

    @property
    def now_s(self) -> float:
        return self.run.now_s if self.run else self._begin_s

    @property
    def is_dry(self) -> bool:
        if self.run is None:
            return True
        counts = self.run.state.counts
        return int(counts["num_running"] + counts["num_waiting"]) == 0

    def take(self, message: Take, generated: Int32, now_s: float) -> None:
        """`generated`: output tokens that each of the requests has."""
        self._mine[message.requests] = True
        self._begun[message.requests] = False
        if self.run is None:
            self.run = self._prepared.rank(
                message.requests, self._rank, self._keep_chunks, max(now_s, self._begin_s)
            )
        else:
            run = self.run
            if self.is_dry:
                run.wait_until(now_s)
            run.state, run.order = deposited(
                run.state, self._prepared.batcher_job, run.order, message.requests, generated
            )

    def learn(self, message: Learn) -> None:
        if self.run is not None:
            observed(self.run.state, message.outputs)

    def give(self, message: Give | GiveRunning) -> tuple[Int32, Int32]:
        """Requests that it gives, and output tokens that they have."""
        if self.run is None:
            return _NOTHING, _NOTHING
        state, order = self.run.state, self.run.order
        if isinstance(message, Give):
            self.run.order, taken = withdrawn(state, order, message.requests)
        else:
            self.run.order, taken, _ = released(state, order, message.memory_s, message.room)
        self._mine[taken] = False
        rows = state.requests[taken]
        return taken, rows["known_len"] - rows["prompt_len"]

    def advance(self, log: Log, until_s: float) -> tuple[Begun, Report]:
        run, cost = self.run, self._prepared.cost
        if run is None:
            raise BackendError(f"rank {self._rank} has nothing to do")
        steps = run.advance(log, until_s)
        self._stepped_s += float(steps[:, SECONDS].sum())
        self._expected_s += float(cost.overlapped_s(steps[:, COMPUTE], steps[:, MEMORY]).sum())
        status = run.state.requests["status"]
        begun = self._mine & (status != WAITING) & ~self._begun
        ended = self._mine & (status == DONE) & ~self.ended
        self._begun |= begun
        self.ended |= ended
        requests = np.flatnonzero(ended).astype(np.int32)
        figures = figures_of(run.state, self._stepped_s, self._expected_s, 0)
        began = Begun(np.flatnonzero(begun).astype(np.int32))
        return began, Report(requests, figures)


class _VirtualRanks:
    def __init__(self, prepared: Prepared, parts: Sequence[Int32], keep_chunks: bool) -> None:
        self._prepared, self._parts, self._keep_chunks = prepared, parts, keep_chunks
        work = Work(prepared.order.tree, prepared.planned, prepared.learned, prepared.cost)
        self.coordinator = Coordinator(work, parts)
        self._ranks: dict[int, _VirtualRank] = {}
        self._past: list[tuple[int, _VirtualRank]] = []  # processes that have died
        # output tokens of requests that are on the way from one rank to another, [N]
        self._generated = np.zeros(prepared.job.tree.num_requests, np.int32)
        self._log = Log.new()
        self._quantum_s = prepared.optimum.practical_s / prepared.options.dp / _QUANTA

    def run(self, faults: Sequence[Fault]) -> None:
        """To the end of the job. Raises BackendError where all ranks are lost."""
        self._obey(self.coordinator.begin(), 0.0)
        waiting = list(faults)
        while not self.coordinator.is_over:
            if self.coordinator.is_lost:
                raise BackendError("every rank has died too often")
            busy = {r: one for r, one in self._ranks.items() if not one.is_dry}
            if not busy:
                raise BackendError("the simulated ranks have nothing to do, and are not done")
            rank, one = min(busy.items(), key=lambda item: item[1].now_s)
            if waiting and waiting[0].at_s <= one.now_s:
                self._die(waiting.pop(0))
                continue
            began, report = one.advance(self._log, one.now_s + self._quantum_s)
            self.coordinator.began(began.requests)
            self._obey(self.coordinator.reported(rank, report), one.now_s)

    def _die(self, fault: Fault) -> None:
        one = self._ranks.pop(fault.rank, None)
        if one is None:
            return
        self._past.append((fault.rank, one))
        saved = np.flatnonzero(one.ended).astype(np.int32)
        self._obey(self.coordinator.died(fault.rank, saved), max(fault.at_s, one.now_s))

    def _obey(self, orders: Sequence[Order], now_s: float) -> None:
        todo = list(orders)
        while todo:
            order = todo.pop(0)
            if isinstance(order, Start):
                self._ranks[order.rank] = _VirtualRank(
                    self._prepared, order.rank, now_s, self._keep_chunks
                )
                todo += self.coordinator.loaded(order.rank)
            elif isinstance(order, Send) and isinstance(order.message, Take):
                requests = order.message.requests
                self._ranks[order.rank].take(order.message, self._generated[requests], now_s)
                self._generated[requests] = 0
            elif isinstance(order, Send) and isinstance(order.message, Learn):
                self._ranks[order.rank].learn(order.message)
            elif isinstance(order, Send) and isinstance(order.message, (Give, GiveRunning)):
                taken, generated = self._ranks[order.rank].give(order.message)
                self._generated[taken] = generated
                todo += self.coordinator.gave(order.rank, taken)
            elif isinstance(order, GiveUp):
                self._ranks.pop(order.rank, None)

    def results(self) -> tuple[list[Simulated], list[Int32]]:
        """Each process that ran, and what it answered."""
        made, parts = [], []
        for _, one in sorted([*self._past, *self._ranks.items()], key=lambda item: item[0]):
            if one.run is not None:
                made.append(one.run.result())
                parts.append(np.flatnonzero(one.ended).astype(np.int32))
        return made, parts
