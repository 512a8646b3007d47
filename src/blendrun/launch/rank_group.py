"""Runs the ranks of an attempt: carries messages between coordinator and processes.

Owns the processes: whatever happens, `close` leaves none behind.
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
from blendrun.engine.loop import Advance
from blendrun.engine.twins import Twins, find_twins
from blendrun.errors import BackendError, BlendrunError
from blendrun.launch.coordinator import (
    MOST_RESTARTS,
    Condemn,
    Coordinator,
    GiveUp,
    Order,
    Start,
    Work,
)
from blendrun.launch.launcher import Handle, Launcher
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
    Stop,
)
from blendrun.launch.worker import RankJob
from blendrun.schedule.partition import partition
from blendrun.tree.prefix_tree import Int32
from blendrun.units import count_of

TORCH_ENGINE = "blendrun.launch.torch_engine:open_engine"
_WAIT_S = 0.5
_STOP_S = 8.0  # for a step to end and results to be saved; then ranks are killed


class _Process:
    """A process of a rank, and how far it is."""

    def __init__(self, handle: Handle, numbers: range) -> None:
        self.handle, self.numbers = handle, numbers
        self.is_loaded = False
        self.has_window = False


class RankGroup:
    """`Ranks` of `engine.attempt`, started by a launcher."""

    def __init__(self, launcher: Launcher, num_ranks: int, engine: str = TORCH_ENGINE) -> None:
        """`engine`: see `RankJob`."""
        self._launcher, self._num_ranks, self._engine = launcher, num_ranks, engine
        self._processes: dict[int, _Process] = {}

    def answer(self, work: WindowWork) -> float:
        """Answer all of `work`, as `engine.attempt.Ranks`.

        Raises:
            BackendError: every rank has died too often.
            what a rank fails with.
        """
        window = _Window(self, work)
        try:
            window.run()
        finally:
            if window.coordinator.is_over:
                self._close_window()
        return window.begin_s or time.monotonic()

    def start(self, rank: int, work: WindowWork) -> "_Process":
        """Another process for `rank`; one that it had before is gone."""
        numbers = work.journal.reserve()
        job = RankJob(
            rank,
            self._num_ranks,
            self._num_ranks,
            work.plan_path.resolve(),
            work.journal.run_dir.resolve(),
            work.settings,
            work.attempt,
            numbers,
            work.deadline.begin_s,
            self._engine,
        )
        self._processes[rank] = _Process(self._launcher.start(job), numbers)
        return self._processes[rank]

    def heard(self) -> list[tuple[int, FromRank | None]]:
        """What ranks have said, after a while of waiting; None: its process has ended."""
        self._launcher.wait([one.handle for one in self._processes.values()], _WAIT_S)
        said: list[tuple[int, FromRank | None]] = []
        for rank, one in self._processes.items():
            is_alive = one.handle.is_alive()  # first: what it says before its end still counts
            while (message := one.handle.receive()) is not None:
                said.append((rank, message))
            if not is_alive:
                said.append((rank, None))
        return said

    def process(self, rank: int) -> "_Process | None":
        return self._processes.get(rank)

    def bury(self, rank: int) -> tuple[range, str]:
        """Numbers of the files of a process that has ended, and how it did."""
        one = self._processes.pop(rank)
        how = one.handle.ending()
        one.handle.kill()
        return one.numbers, how

    def _close_window(self) -> None:
        """Until all steps of the window are on disk; a rank that ends meanwhile has none left."""
        opened = {rank for rank, one in self._processes.items() if one.has_window}
        for rank in opened:
            self._processes[rank].handle.send(CloseWindow())
            self._processes[rank].has_window = False
        while opened:
            for rank, message in self.heard():
                if isinstance(message, Failed):
                    raise _error_of(message)
                if message is None:
                    self.bury(rank)
                if message is None or isinstance(message, Closed):
                    opened.discard(rank)

    def close(self) -> None:
        """End all processes; those that do not end by themselves in time are killed."""
        for one in self._processes.values():
            one.handle.send(Stop())
        end = time.monotonic() + _STOP_S
        try:
            while time.monotonic() < end and any(
                one.handle.is_alive() for one in self._processes.values()
            ):
                self.heard()
        finally:
            for rank in list(self._processes):
                self.bury(rank)


class _Window:
    """The requests of one window, and the ranks at work on them."""

    def __init__(self, group: RankGroup, work: WindowWork) -> None:
        self._group, self._work = group, work
        requests, pending = work.requests, work.pending
        shares = work.settings.prefix_cache
        self._twins = find_twins(requests, pending) if shares else Twins.none(pending)
        shape = ModelShape.from_hf_config(work.files.config, work.plan.model.name)
        cost = CostModel(shape, HardwareProfile.load("this-cpu"))
        lengths = requests.expected_output_len
        self.coordinator = Coordinator(
            Work(requests.tree, lengths, requests.learned, cost),
            _parts(work, self._twins.running, cost, group._num_ranks),
        )
        self.begin_s: float | None = None  # when the first rank was ready
        self._is_described = False
        self._answered = 0  # with twins
        self._by_key = np.argsort(requests.keys)

    def run(self) -> None:
        self._obey(self.coordinator.begin())
        while not self.coordinator.is_over:
            for rank, message in self._group.heard():
                self._obey(self._hear(rank, message))
            if self.coordinator.is_lost:
                raise BackendError(
                    "every rank has died too often; what is finished is saved",
                    "their messages are above; the same command continues",
                )

    def _hear(self, rank: int, message: FromRank | None) -> list[Order]:
        coordinator = self.coordinator
        if message is None:
            return self._died(rank)
        if isinstance(message, Loaded):
            return self._open(rank)
        if isinstance(message, Running):
            self._describe(message)
        if isinstance(message, Begun):
            coordinator.began(message.requests)
        if isinstance(message, Gave):
            return coordinator.gave(rank, message.requests)
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
                process = self._group.process(order.rank)
                if process is None:
                    self._group.start(order.rank, self._work)
                elif process.is_loaded:
                    todo += self._open(order.rank)
            elif isinstance(order, Condemn):
                self._condemn(order.request)
            elif isinstance(order, GiveUp):
                self._work.note(f"rank {order.rank} is not started again")
            elif (process := self._group.process(order.rank)) is not None:
                process.handle.send(order.message)

    def _open(self, rank: int) -> list[Order]:
        """The rank is ready for the window."""
        process = self._group.process(rank)
        if process is None:
            return []
        if self.begin_s is None:
            self.begin_s = time.monotonic()
        process.is_loaded = process.has_window = True
        request, lengths = self._work.requests.seen
        process.handle.send(
            OpenWindow(self._work.number, self._work.pending, request, lengths, self.begin_s)
        )
        return self.coordinator.loaded(rank)

    def _died(self, rank: int) -> list[Order]:
        numbers, how = self._group.bury(rank)
        keys = self._work.journal.keys_in(numbers)  # it may have saved more than it has told
        all_keys = self._work.requests.keys
        found = self._by_key[np.searchsorted(all_keys, keys, sorter=self._by_key)]
        orders = self.coordinator.died(rank, found.astype(np.int32))
        again = any(isinstance(order, Start) for order in orders)
        goes_on = f"it starts again ({MOST_RESTARTS} times at most)" if again else "others go on"
        self._work.note(f"rank {rank} ended ({how}): {goes_on}")
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
        ranks = self.coordinator.ranks
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
