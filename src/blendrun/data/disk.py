"""Files that appear whole or not at all, whenever the process or the machine dies."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from blendrun.errors import DiskFullError
from blendrun.units import format_bytes

TEMP_SUFFIX = ".tmp"


@contextmanager
def atomic_file(
    path: Path, needs: str | None = None, several_writers: bool = False
) -> Iterator[BinaryIO]:
    """A file to write that takes the name `path` only when the block ends without an error.

    `needs`: how large it will be, for the message where there is no room.
    `several_writers`: other processes may write it at the same time; the last one's stays.

    Raises:
        DiskFullError: the disk is full; nothing is left behind.
    """
    own = f".{os.getpid()}" if several_writers else ""
    temp = path.with_name(path.name + own + TEMP_SUFFIX)
    try:
        with full_disk(temp, needs):
            with temp.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the name `path`, and the place of a folder there, when the block
    ends without an error.
    """
    temp = path.with_name(path.name + TEMP_SUFFIX)
    shutil.rmtree(temp, ignore_errors=True)
    temp.mkdir()
    try:
        yield temp
        sync_folder(temp)
        if path.exists():
            shutil.rmtree(path)
        temp.rename(path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    sync_folder(path.parent)


@contextmanager
def full_disk(path: Path, needs: str | None = None) -> Iterator[None]:
    """Turns the system's error of a full disk into a DiskFullError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        written = path.stat().st_size if path.exists() else 0
        wants = f"{format_bytes(written)} written so far" if needs is None else f"it needs {needs}"
        room = "the disk quota is used up"
        if error.errno == errno.ENOSPC:
            room = f"{format_bytes(written + shutil.disk_usage(path.parent).free)} to be had"
        raise DiskFullError(
            f"no room on the disk for {str(path).removesuffix(TEMP_SUFFIX)}: {wants}, {room}",
            "free some space and start again; what was finished before is kept",
        ) from error


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Creates `folder` (and parents) so that it lasts through a power cut."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
