"""Append-only results of a run: parts that appear whole or not at all, and a lock.

Knows files and rows, not what made them. One process writes to a run folder at a time; the lock
goes when that process does, however it ends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.data.answers import ANSWER_SCHEMA, answer_keys
from blendrun.data.disk import TEMP_SUFFIX, make_folder
from blendrun.data.lock import take_lock
from blendrun.data.output_files import remove
from blendrun.data.part_files import (
    EVERY_NUMBER,
    MOST_SMALL_FILES,
    NUMBERS,
    list_files,
    merge_small_files,
    remove_superseded,
    small_files,
)
from blendrun.data.renumbered import PARTS_FOLDER, settle
from blendrun.data.table_file import write_table
from blendrun.data.unfinished import gather_unfinished, read_unfinished, write_unfinished
from blendrun.errors import PlanError

_Read = TypeVar("_Read")
_KEY_COLUMNS = ["row", "output_index"]
LOCK_FILE = "run.lock"
PARTS, STEPS = "part", "steps"  # file name stems
_FOLDERS = {PARTS: PARTS_FOLDER, STEPS: "steps"}
# 64-bit offsets: all answers of a job together may hold more than 2 GiB of text.


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.large_list(_wide(kind.value_type))
    return pa.large_string() if kind == pa.string() else kind


_WIDE_SCHEMA = pa.schema([f.with_type(_wide(f.type)) for f in ANSWER_SCHEMA])


class _Parts:
    """Numbered files of answers and of step records, to which one writer adds.

    Owns the numbers, and how many of the newest files are small.
    """

    run_dir: Path
    _numbers: range  # of the files that it may put together
    _last: dict[str, int]
    _num_small: dict[str, int]

    def append(self, table: pa.Table) -> None:
        """Adds answers (ANSWER_SCHEMA) as one part, which lasts once this returns.

        Raises:
            PlanError: the columns are not those of ANSWER_SCHEMA.
            DiskFullError: there is no room for it.
        """
        if not table.schema.equals(ANSWER_SCHEMA):
            raise PlanError(f"not a table of answers: {', '.join(table.schema.names)}")
        if table.num_rows:
            self._write(PARTS, table)

    def append_steps(self, table: pa.Table) -> None:
        """Adds step records, of any columns, as one part."""
        if table.num_rows:
            self._write(STEPS, table)

    def _write(self, stem: str, table: pa.Table) -> None:
        self._last[stem] += 1  # first, so that no later part can take the name of this one
        path = self.run_dir / _FOLDERS[stem] / f"{stem}-{self._last[stem]:06d}.parquet"
        write_table(path, table)
        self._num_small[stem] += 1
        if self._num_small[stem] >= MOST_SMALL_FILES:
            self._merge(stem)

    def _merge(self, stem: str) -> None:
        folder = self.run_dir / _FOLDERS[stem]
        merge_small_files(folder, stem, read_columns, self._numbers)
        self._num_small[stem] = len(small_files(folder, stem, self._numbers))


class RankJournal(_Parts):
    """Results that a rank adds to the folder of a run whose lock its coordinator holds."""

    def __init__(self, run_dir: Path, numbers: range) -> None:
        """`numbers`: from `ResultJournal.reserve`, for this process alone."""
        self.run_dir, self._numbers = run_dir, numbers
        self._last = dict.fromkeys(_FOLDERS, numbers.start - 1)
        self._num_small = dict.fromkeys(_FOLDERS, 0)

    def save_unfinished(self, table: pa.Table) -> None:
        """Keeps what this rank's unfinished answers have, instead of what was kept of them."""
        write_unfinished(self.run_dir, table, self._numbers.start)


class ResultJournal(_Parts):
    """The results of a run folder, open for appending.

    Raises:
        InputError: another process has the folder open.
        PlanError: a part cannot be read.
    """

    def __init__(self, run_dir: Path) -> None:
        make_folder(run_dir)
        self.run_dir = run_dir
        self._lock = take_lock(run_dir / LOCK_FILE)
        try:
            self.reload()
        except BaseException:
            self._lock.close()
            raise

    def reload(self) -> None:
        """Looks at what is in the folder, and tidies up after a process that died. As the class."""
        settle(self.run_dir)
        gather_unfinished(self.run_dir)
        self._numbers, self._next = EVERY_NUMBER, 0
        for folder in (self.run_dir, *(self.run_dir / name for name in _FOLDERS.values())):
            make_folder(folder)
            for leftover in folder.glob(f"*{TEMP_SUFFIX}"):
                if not leftover.name.startswith("."):  # somebody else's: a plan in the making
                    remove(leftover)
        self._last, self._num_small = dict[str, int](), dict[str, int]()
        for stem, name in _FOLDERS.items():
            remove_superseded(self.run_dir / name, stem)
            self._merge(stem)
            files, _ = list_files(self.run_dir / name, stem)
            self._last[stem] = files[-1].last if files else 0
        paths = files_of(self.run_dir, PARTS)
        self._keys = [keys_of(read_part(path, _KEY_COLUMNS)) for path in paths]

    def finished(self) -> npt.NDArray[np.int64]:
        """Keys (`answer_keys`) of the answers that are there, sorted, each once."""
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *self._keys]))
        self._keys = [keys]
        return keys

    def reserve(self) -> range:
        """Numbers for the files of another writer (`RankJournal`), which no other one gets."""
        if not self._next:
            last = max(self._last.values())
            self._numbers = range(last + 1, last + 1 + NUMBERS)
            self._next = self._numbers.stop
        first, self._next = self._next, self._next + NUMBERS
        return range(first, self._next)

    def failed(self) -> npt.NDArray[np.int64]:
        """Keys of the answers that are error rows, sorted."""
        answers = read_answers(self.run_dir, ["status"])
        return keys_of(answers.filter(pc.equal(answers["status"], "error")))

    def append(self, table: pa.Table) -> None:
        """As `_Parts.append`."""
        super().append(table)
        if table.num_rows:
            self._keys.append(keys_of(table))

    def keys_in(self, numbers: range) -> npt.NDArray[np.int64]:
        """Keys of the answers in files with these numbers. Raises PlanError."""
        files, _ = list_files(self.run_dir / _FOLDERS[PARTS], PARTS)
        paths = [file.path for file in files if file.first in numbers]
        keys = [keys_of(read_part(path, _KEY_COLUMNS)) for path in paths]
        return np.concatenate([np.zeros(0, np.int64), *keys])

    def read_steps(self) -> pa.Table:
        """All step records in the order they were added; no columns where there are none."""
        return read_steps(self.run_dir)

    def save_unfinished(self, table: pa.Table) -> None:
        """Keeps what unfinished answers have (UNFINISHED_SCHEMA), instead of what was kept."""
        write_unfinished(self.run_dir, table)

    def read_unfinished(self) -> pa.Table:
        """What was kept of answers that are not finished."""
        table = read_unfinished(self.run_dir)
        return table.filter(pa.array(~np.isin(keys_of(table), self.finished())))

    def close(self) -> None:
        """Lets go of the folder."""
        self._lock.close()

    def __enter__(self) -> "ResultJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_answers(run_dir: Path, columns: Sequence[str] = ANSWER_SCHEMA.names) -> pa.Table:
    """All answers in the order of their keys, each once (`one_of_each`).

    Those of `columns` that are in ANSWER_SCHEMA, what the key is made of and the status; strings
    and lists with 64-bit offsets. Needs no lock.

    Raises:
        PlanError: a part cannot be read.
    """
    needed = (*_KEY_COLUMNS, "status", *columns)
    names = [name for name in ANSWER_SCHEMA.names if name in needed]
    return wide_answers(of_each(run_dir, PARTS, lambda path: read_part(path, names)), names)


def wide_answers(
    tables: Sequence[pa.Table], names: Sequence[str] = ANSWER_SCHEMA.names
) -> pa.Table:
    """Tables of answers with the columns `names` as `read_answers` gives them."""
    wide = pa.schema([_WIDE_SCHEMA.field(name) for name in names])
    return one_of_each(
        pa.concat_tables([wide.empty_table(), *(table.cast(wide) for table in tables)])
    )


def used_columns(run_dir: Path, names: Sequence[str]) -> list[str]:
    """Those of the columns `names` in which some answer says something. Raises PlanError."""
    used: set[str] = set()
    for path in files_of(run_dir, PARTS):
        wanted = [name for name in names if name not in used]
        part = read_part(path, wanted)
        used |= {name for name in wanted if part[name].null_count < part.num_rows}
    return [name for name in names if name in used]


def keys_of(table: pa.Table) -> npt.NDArray[np.int64]:
    """The key of each answer."""
    return answer_keys(*(table[name].to_numpy() for name in _KEY_COLUMNS))


def one_of_each(table: pa.Table) -> pa.Table:
    """`table` sorted by the keys of its answers, in one chunk, of equal ones the one that counts.

    That is the first, or, where all of them are error rows, the last try.
    """
    keys = keys_of(table)
    if np.all(np.diff(keys) > 0):
        return table.combine_chunks()
    place = np.arange(len(keys))
    is_error = pc.equal(table["status"], "error").to_numpy()
    order = np.lexsort((np.where(is_error, -place, place), is_error, keys))
    counts = np.diff(keys[order], prepend=-1) > 0
    return table.take(pa.array(order[counts])).combine_chunks()


def read_steps(run_dir: Path) -> pa.Table:
    """All step records of a run, in the order they were added. Raises PlanError."""
    steps = of_each(run_dir, STEPS, read_columns)
    return pa.concat_tables(steps, promote_options="permissive") if steps else pa.table({})


def files_of(run_dir: Path, stem: str) -> list[Path]:
    """The files of PARTS or STEPS that count, oldest first."""
    files, _ = list_files(run_dir / _FOLDERS[stem], stem)
    return [file.path for file in files]


def of_each(run_dir: Path, stem: str, read: Callable[[Path], _Read]) -> list[_Read]:
    """What `read` gives of each file of PARTS or STEPS, also while the run merges some."""
    while True:
        try:
            return [read(path) for path in files_of(run_dir, stem)]
        except FileNotFoundError:  # its rows are in a merged file now
            continue


def read_columns(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Raises PlanError where `path` cannot be read, FileNotFoundError where it is gone."""
    with _damage(path), pq.ParquetFile(path) as file:
        return file.read(columns)


def read_part(path: Path, names: list[str]) -> pa.Table:
    """Columns of one part. Raises PlanError."""
    table = read_columns(path, names)
    with _damage(path):
        return table.select(names).cast(pa.schema([ANSWER_SCHEMA.field(name) for name in names]))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise PlanError(
            f"cannot read the results in {path}: {error}",
            "move the file away; its rows are then run again",
        ) from error
