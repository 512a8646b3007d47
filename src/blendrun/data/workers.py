"""Work on the pieces of a stream in other processes; results come back in order.

A bounded number of pieces is under way, so memory does not grow with the stream. Knows nothing of
what the work is.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from blendrun.errors import BackendError

P = TypeVar("P")
R = TypeVar("R")

MAX_WORKERS = 16  # each holds a tokenizer and its libraries, some 200 MB
_AHEAD = 2  # pieces per worker that wait or are worked on

_work: Callable[[Any], Any] | None = None  # of a worker process


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers(Generic[P, R]):
    """`num_workers` processes, started at the first `map`; each is sent `work` once."""

    def __init__(self, work: Callable[[P], R], num_workers: int) -> None:
        self._work, self._num_workers = work, num_workers
        self._pool: ProcessPoolExecutor | None = None

    def map(self, pieces: Iterable[P]) -> Iterator[R]:
        """`work` of each piece, in order.

        Raises:
            BackendError: a worker was killed.
            Exception: whatever `work` raises, at the place of its piece.
        """
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__, "blendrun.data.row_work"])
            self._pool = ProcessPoolExecutor(self._num_workers, context, _begin, (self._work,))
        under_way: deque[Future[R]] = deque()
        try:
            for piece in pieces:
                under_way.append(self._pool.submit(_do, piece))
                if len(under_way) >= _AHEAD * self._num_workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise BackendError(
                "a process that reads and tokenizes was killed",
                "often memory is short: take fewer with --workers",
            ) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and shuts the pool down
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot shut the pool down, and its queue would be waited on for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(piece: Any) -> Any:
    assert _work is not None
    return _work(piece)
