"""The requests of one window, and the ranks at work on them.

Carries messages between the coordinator and processes, and knows the time: a rank that has
something to do and says nothing for too long is ended, and is then like any other that died.
"""

import time
from collections.abc import Sequence

import numpy as np

from blendrun import errors
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.data.answers import answers_table
from blendrun.engine.attempt import WindowWork
from blendrun.engine.devices import takes_gpu
from blendrun.engine.loop import Advance
from blendrun.engine.twins import Twins, find_twins
from blendrun.errors import BackendError, BlendrunError
from blendrun.launch.coordinator import MOST_RESTARTS, Coordinator
from blendrun.launch.messages import (
    Begun,
    Closed,
    CloseWindow,
    Failed,
    FromRank,
    Gave,
    Loaded,
    OpenWindow,
    Report,
    Running,
    Take,
)
from blendrun.launch.orders import Condemn, GiveUp, Order, Start
from blendrun.launch.rank_processes import RankProcesses
from blendrun.launch.work import Work
from blendrun.schedule.partition import partition
from blendrun.tree.prefix_tree import Int32
from blendrun.units import count_of

_LONG_STEPS = 10.0  # of the largest prefill: a silence that may just be a slow machine
_FIRST_STEPS = 4.0  # kernels are compiled before the first report of a process
_HANGS = "it hangs"


class WindowRun:
    def __init__(self, processes: RankProcesses, work: WindowWork) -> None:
        self._processes, self._work = processes, work
        requests, pending = work.requests, work.pending
        shares = work.settings.prefix_cache
        self._twins = find_twins(requests, pending) if shares else Twins.none(pending)
        shape = ModelShape.from_hf_config(work.files.config, work.plan.model.name)
        hardware = "auto" if takes_gpu(work.settings.device) else "this-cpu"
        cost = CostModel(shape, HardwareProfile.load(hardware))
        lengths = requests.expected_output_len
        self._coordinator = Coordinator(
            Work(requests.tree, lengths, requests.learned, cost),
            _parts(work, self._twins.running, cost, processes.num_ranks),
        )
        step_s = float(cost.prefill_s(0, work.settings.chunk_size))
        self._patience_s = max(work.settings.hang_limit_s, _LONG_STEPS * step_s)
        self.begin_s: float | None = None  # when the first rank was ready
        self._is_described = False
        self._answered = 0  # with twins
        self._by_key = np.argsort(requests.keys)

    @property
    def is_over(self) -> bool:
        return self._coordinator.is_over

    def run(self) -> None:
        self._obey(self._coordinator.begin())
        while not self._coordinator.is_over:
            for rank, message in self._processes.heard():
                self._obey(self._hear(rank, message))
            for rank in range(self._processes.num_ranks):
                if self._hangs(rank):
                    self._obey(self._died(rank, _HANGS))
            if self._coordinator.is_lost:
                raise BackendError(
                    "every rank has died too often; what is finished is saved",
                    "their messages are above; the same command continues",
                )

    def close(self) -> None:
        """Until all steps of the window are on disk; a rank that ends meanwhile has none left."""
        opened = self._processes.with_window()
        for rank in opened:
            if (process := self._processes[rank]) is not None:
                process.handle.send(CloseWindow())
                process.has_window, process.silent_s = False, 0.0
        while opened:
            for rank, message in self._processes.heard():
                if isinstance(message, Failed):
                    raise _error_of(message)
                if message is None:
                    self._processes.bury(rank)
                if message is None or isinstance(message, Closed):
                    opened.discard(rank)
            for rank in [rank for rank in opened if self._is_silent(rank)]:
                self._processes.bury(rank)
                opened.discard(rank)

    def _hangs(self, rank: int) -> bool:
        """Whether a rank that has something to do has been silent for too long."""
        process = self._processes[rank]
        if process is None or not process.has_window or not self._is_silent(rank):
            return False
        return self._coordinator.has_work(rank)

    def _is_silent(self, rank: int) -> bool:
        process = self._processes[rank]
        if process is None:
            return False
        return process.silent_s > self._patience_s * (1 if process.has_reported else _FIRST_STEPS)

    def _hear(self, rank: int, message: FromRank | None) -> list[Order]:
        coordinator = self._coordinator
        if message is None:
            return self._died(rank)
        if isinstance(message, Loaded):
            return self._open(rank)
        if isinstance(message, Running):
            self._describe(message)
        if isinstance(message, Begun):
            coordinator.began(message.requests)
        if isinstance(message, Gave):
            return coordinator.gave(rank, message.requests, message.answers)
        if isinstance(message, Failed):
            raise _error_of(message)
        if isinstance(message, Report):
            self._answered += len(message.ended)
            orders = coordinator.reported(rank, message)
            self._tell()
            return orders
        return []

    def _obey(self, orders: Sequence[Order]) -> None:
        todo = list(orders)
        while todo:
            order = todo.pop(0)
            if isinstance(order, Start):
                process = self._processes[order.rank]
                if process is None:
                    self._processes.start(order.rank, self._work)
                elif process.is_loaded:
                    todo += self._open(order.rank)
            elif isinstance(order, Condemn):
                self._condemn(order.request)
            elif isinstance(order, GiveUp):
                self._work.note(f"rank {order.rank} is not started again")
            elif (process := self._processes[order.rank]) is not None:
                if isinstance(order.message, Take):
                    process.silent_s = 0.0  # before, it may have had nothing to say
                process.handle.send(order.message)

    def _open(self, rank: int) -> list[Order]:
        """The rank is ready for the window."""
        process = self._processes[rank]
        if process is None:
            return []
        if self.begin_s is None:
            self.begin_s = time.monotonic()
        process.is_loaded = process.has_window = True
        request, lengths = self._work.requests.seen
        process.handle.send(
            OpenWindow(self._work.number, self._work.pending, request, lengths, self.begin_s)
        )
        return self._coordinator.loaded(rank)

    def _died(self, rank: int, why: str = "") -> list[Order]:
        """`why`: where its process is still there."""
        numbers, how = self._processes.bury(rank)
        keys = self._work.journal.keys_in(numbers)  # it may have saved more than it has told
        all_keys = self._work.requests.keys
        found = self._by_key[np.searchsorted(all_keys, keys, sorter=self._by_key)]
        orders = self._coordinator.died(rank, found.astype(np.int32))
        again = any(isinstance(order, Start) for order in orders)
        goes_on = f"it starts again ({MOST_RESTARTS} times at most)" if again else "others go on"
        self._work.note(f"rank {rank} ended ({why or how}): {goes_on}")
        return orders

    def _condemn(self, request: int) -> None:
        """An error row for a request, and for those that would be answered alike."""
        requests = self._work.requests
        rows = np.array([request, *self._twins.others.get(request, ())], np.int32)
        n = len(rows)
        why = (
            "killed_its_rank: the process that computed this request ended, and again with it alone"
        )
        self._work.journal.append(
            answers_table(
                row=requests.row[rows],
                output_index=requests.sample[rows],
                output_text=[None] * n,
                output_token_ids=[[]] * n,
                finish_reason=[None] * n,
                num_prompt_tokens=requests.prompt_len[rows],
                num_cached_tokens=np.zeros(n, np.int32),
                error=[why] * n,
            )
        )
        self._answered += n
        self._work.note(f"{count_of(n, 'row')} set aside: killed_its_rank")

    def _describe(self, message: Running) -> None:
        if not self._is_described:
            self._is_described = True
            self._work.describe(message.environment)
            if message.num_continued:
                self._work.note(
                    f"{count_of(message.num_continued, 'unfinished answer')} to continue"
                )

    def _tell(self) -> None:
        ranks = self._coordinator.ranks
        self._work.step(
            Advance(
                self._answered,
                sum(one.running for one in ranks),
                sum(one.waiting for one in ranks),
                sum(one.output_tokens + one.earlier_tokens for one in ranks),
                time.monotonic() - (self.begin_s or time.monotonic()),
            )
        )


def _parts(work: WindowWork, running: Int32, cost: CostModel, ranks: int) -> list[Int32]:
    """What each rank begins with, in planned order."""
    requests = work.requests
    lengths, learned = requests.expected_output_len, requests.learned
    parts = partition(requests.tree, running, lengths, cost, ranks, learned)
    return [part.requests for part in parts]


def _error_of(failed: Failed) -> BlendrunError:
    kind = getattr(errors, failed.kind, BackendError)
    made: BlendrunError = kind(failed.message, failed.hint)
    return made
