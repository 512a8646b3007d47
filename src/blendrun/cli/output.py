"""Stdout that may go away: a reader such as `head` that stops early must not stop a job."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stdout_may_close() -> Iterator[None]:
    """Print in this block; if the reader has gone, what follows is printed to nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (a device, not a path of ours)
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
