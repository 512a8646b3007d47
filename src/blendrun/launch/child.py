"""A process that another one has started: it ends with that one, and is not interrupted itself."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


@contextmanager
def signals_held() -> Iterator[None]:
    """Processes started inside never get SIGINT or SIGTERM: who started them ends them.

    Those that come to this process meanwhile are delivered at the end.
    """
    resource_tracker.ensure_running()  # starting it later would let signals through
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def end_with(parent: Connection) -> None:
    """Ends this process at once when the other end of the pipe is closed, or its owner dies."""
    with suppress(OSError, AttributeError):  # not Linux: the pipe tells, too
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also ends a stopped process
    threading.Thread(target=_wait_for_end, args=(parent,), daemon=True).start()


def _wait_for_end(parent: Connection) -> None:
    try:
        parent.recv()
    except (EOFError, OSError):
        os._exit(0)
