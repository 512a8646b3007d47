"""Answers that got the row numbers of a changed input, on their way into the run folder.

They are made in a folder that does not count. Renaming it is the moment from which they do; what it
holds then moves into its place, now or, where the process dies, when the run is opened again.
"""

import shutil
from pathlib import Path

from blendrun.data.answer_keys import KEYS_FILE
from blendrun.data.disk import TEMP_SUFFIX, sync_folder
from blendrun.data.manifest import MANIFEST_FILE
from blendrun.data.unfinished import UNFINISHED_FILE

PARTS_FOLDER, UNUSED_FOLDER = "parts", "unused"
# the manifest last: it says which job the others are of
_NAMES = (PARTS_FOLDER, UNUSED_FOLDER, UNFINISHED_FILE, KEYS_FILE, MANIFEST_FILE)
_FOLDER = "renumbered"


def begin(run_dir: Path) -> Path:
    """An empty folder to put `_NAMES` in, all of them."""
    folder = run_dir / (_FOLDER + TEMP_SUFFIX)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


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


def commit(run_dir: Path) -> None:
    """From now on what lies in the folder of `begin` counts, whatever happens."""
    folder = run_dir / (_FOLDER + TEMP_SUFFIX)
    sync_folder(folder)
    folder.rename(run_dir / _FOLDER)
    sync_folder(run_dir)
    settle(run_dir)
