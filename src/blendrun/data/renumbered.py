"""Answers that got the row numbers of a changed input, on their way into the run folder.

They are made in a folder that does not count. Renaming it is the moment from which they do; what it
holds then moves into its place, now or, where the process dies, when the run is opened again.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blendrun.data.answer_keys import KEYS_FILE
from blendrun.data.disk import TEMP_SUFFIX, sync_folder
from blendrun.data.manifest import MANIFEST_FILE
from blendrun.data.unfinished import UNFINISHED_FILE

PARTS_FOLDER, UNUSED_FOLDER = "parts", "unused"
# the manifest last: it says which job the others are of
_NAMES = (PARTS_FOLDER, UNUSED_FOLDER, UNFINISHED_FILE, KEYS_FILE, MANIFEST_FILE)
_FOLDER = "renumbered"


@contextmanager
def new_files(run_dir: Path) -> Iterator[Path]:
    """An empty folder for `_NAMES`, all of them; when the block ends well, they count."""
    folder = run_dir / (_FOLDER + TEMP_SUFFIX)
    folder.mkdir()
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder)
        raise
    sync_folder(folder)
    folder.rename(run_dir / _FOLDER)
    sync_folder(run_dir)
    settle(run_dir)


def settle(run_dir: Path) -> None:
    """Brings what was made whole into its place; what was not is gone."""
    unfinished, folder = run_dir / (_FOLDER + TEMP_SUFFIX), run_dir / _FOLDER
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    if not folder.is_dir():
        return
    for source, target in ((folder / name, run_dir / name) for name in _NAMES):
        if not source.exists():  # moved already
            continue
        if target.is_dir():
            shutil.rmtree(target)
        source.replace(target)
        sync_folder(folder)
        sync_folder(run_dir)
    folder.rmdir()
    sync_folder(run_dir)
