"""What processes started by tests do; importable from them, and quickly."""

import signal
from multiprocessing.connection import Connection

from blendrun.launch.child import end_with


def sleep(parent: Connection) -> None:
    """Says that it is there, and sleeps for ever."""
    end_with(parent)
    parent.send("ready")
    signal.pause()


def say_no(_job: object, first: Connection) -> None:
    """A rank that does not want."""
    first.send("no")
