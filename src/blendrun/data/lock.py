"""A lock on a folder that the system takes back when the process ends, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from blendrun.errors import InputError


def take_lock(path: Path) -> TextIO:
    """Takes the lock `path` on its folder; closing the file gives it back.

    The number of the process in the file is only for people.

    Raises:
        InputError: another process has it.
    """
    file = path.open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        who = f" by process {holder}" if holder else ""
        raise InputError(
            f"the run folder {path.parent} is in use{who}", "wait for it, or choose another folder"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
