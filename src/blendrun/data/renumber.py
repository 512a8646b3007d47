"""Give the answers of a run the row numbers of a changed input.

An answer belongs to the row with its content. Answers whose rows are gone are set aside with their
keys and come back with the rows. Reads and writes one part at a time.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from blendrun.data import renumbered
from blendrun.data.answer_keys import KEY_TYPE, AnswerKeys, Int64
from blendrun.data.answers import ANSWER_SCHEMA, MOST_ANSWERS
from blendrun.data.manifest import Manifest, write_manifest
from blendrun.data.part_files import list_files
from blendrun.data.renumbered import PARTS_FOLDER, UNUSED_FOLDER
from blendrun.data.results import PARTS, files_of, keys_of, read_columns, read_part
from blendrun.data.table_file import write_table
from blendrun.data.unfinished import UNFINISHED_FILE, read_unfinished
from blendrun.errors import PlanError

_UNUSED_SCHEMA = ANSWER_SCHEMA.append(pa.field("key", KEY_TYPE, nullable=False))
_PART_BYTES = 32 * 2**20  # in memory


def renumber(
    run_dir: Path, old: AnswerKeys, new: AnswerKeys, job_id: str, manifest: Manifest
) -> None:
    """Turn the folder of the job with the keys `old` into one of the job with the keys `new`.

    Happens whole or not at all, whenever the process dies. Nobody else may write to the folder.

    Args:
        job_id: of the job with the keys `new`.
        manifest: of the folder when that is done.

    Raises:
        PlanError: a part cannot be read, or holds an answer that the job does not have.
        DiskFullError: there is no room for the answers a second time; nothing has changed.
    """
    with renumbered.new_files(run_dir) as folder:
        kept = _PartWriter(folder / PARTS_FOLDER)
        unused = _PartWriter(folder / UNUSED_FOLDER)
        for table, place in _placed(run_dir, old, new):
            stays = place >= 0
            kept.add(_moved(table.filter(pa.array(stays)), new, place[stays]).drop_columns("key"))
            unused.add(table.filter(pa.array(~stays)))
        kept.close()
        unused.close()
        begun = read_unfinished(run_dir)
        place = new.find(_contents(begun, old, run_dir / UNFINISHED_FILE))
        begun = _moved(begun.filter(pa.array(place >= 0)), new, place[place >= 0])
        write_table(folder / UNFINISHED_FILE, begun)
        new.write(folder, job_id)
        write_manifest(folder, manifest)


def unused_keys(run_dir: Path) -> pa.ChunkedArray:
    """The keys (KEY_TYPE) of the answers that are set aside."""
    parts = [read_columns(path, ["key"])["key"].chunks for path in _unused_files(run_dir)]
    return pa.chunked_array([chunk for part in parts for chunk in part], KEY_TYPE)


def _placed(run_dir: Path, old: AnswerKeys, new: AnswerKeys) -> Iterator[tuple[pa.Table, Int64]]:
    """All answers, those of one file (_UNUSED_SCHEMA) at a time, and their places in `new`."""
    for path in files_of(run_dir, PARTS):
        table = read_part(path, ANSWER_SCHEMA.names)
        key = _contents(table, old, path)
        yield table.append_column(_UNUSED_SCHEMA.field("key"), key), new.find(key)
    for path in _unused_files(run_dir):
        table = read_columns(path).cast(_UNUSED_SCHEMA)
        yield table, new.find(table["key"])


def _contents(table: pa.Table, old: AnswerKeys, path: Path) -> pa.Array:
    """The key by content of each answer of a table."""
    keys = keys_of(table)
    place = np.minimum(np.searchsorted(old.answer, keys), max(len(old.answer) - 1, 0))
    if len(keys) and not (len(old.answer) and np.array_equal(old.answer[place], keys)):
        raise PlanError(
            f"{path} holds an answer for a row that its job does not have",
            "give another --run-dir",
        )
    return old.content.take(pa.array(place))


def _moved(table: pa.Table, new: AnswerKeys, place: Int64) -> pa.Table:
    """The table with the rows of `new` at `place`. Which of its row's answers one is, stays."""
    row = new.answer[place] // MOST_ANSWERS
    field = table.schema.field("row")
    return table.set_column(table.schema.get_field_index("row"), field, pa.array(row))


def _unused_files(run_dir: Path) -> list[Path]:
    files, _ = list_files(run_dir / UNUSED_FOLDER, PARTS)
    return [file.path for file in files]


class _PartWriter:
    """Puts small tables together to large parts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._number = folder, 0
        self._pending: list[pa.Table] = []
        self._num_bytes = 0

    def add(self, table: pa.Table) -> None:
        if table.num_rows:
            self._pending.append(table)
            self._num_bytes += table.nbytes
        if self._num_bytes >= _PART_BYTES:
            self.close()

    def close(self) -> None:
        """Writes what is left."""
        if self._pending:
            self._number += 1
            table = pa.concat_tables(self._pending)
            write_table(self._folder / f"{PARTS}-{self._number:06d}.parquet", table)
            self._pending, self._num_bytes = [], 0
