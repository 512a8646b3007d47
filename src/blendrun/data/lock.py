"""A lock on a folder that the system takes back when the process ends, however it ends."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from blendrun.data.disk import full_disk
from blendrun.errors import InputError

_TRIES, _PAUSE_S = 3, 0.02  # `lock_holder` of another process may be looking


def take_lock(path: Path) -> TextIO:
    """Takes the lock `path` on its folder; closing the file gives it back.

    The number of the process in the file is only for people.

    Raises:
        InputError: another process has it.
    """
    file = path.open("a+", encoding="ascii")
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if not last:
                time.sleep(_PAUSE_S)
                continue
            file.seek(0)
            holder = file.read().strip()
            file.close()
            who = f" by process {holder}" if holder else ""
            raise InputError(
                f"the run folder {path.parent} is in use{who}",
                "wait for it, or choose another folder",
            ) from error
    try:
        with full_disk(path):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
    except BaseException:
        with suppress(OSError):  # closing writes what could not be written
            file.close()
        raise
    return file


def lock_holder(path: Path) -> str | None:
    """What the lock `path` says of the process that has it; None: nobody has it.

    Nobody is kept out: the lock is asked for, shared, and given back at once.
    """
    if not path.is_file():
        return None
    with path.open(encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return file.read().strip()
    return None
