"""Which answers a job wants, by row and by content: what a run keeps when its input changes.

The key of an answer by content is the hash of its row, which of the row's answers it is, and which
of the equal ones: rows that are repeated on purpose stay apart, and the k-th has the k-th answer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.data.answers import MOST_ANSWERS, answer_keys
from blendrun.data.content import CONTENT_BYTES, Hashes, as_binary, as_bytes
from blendrun.data.table_file import write_table
from blendrun.errors import PlanError

KEYS_FILE = "keys.parquet"
KEY_TYPE = pa.binary(CONTENT_BYTES + 8)  # the hash, which answer, which of the equal ones
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AnswerKeys:
    """The N answers of a job, in the order of its rows and of the answers of a row."""

    answer: Int64  # [N] `answer_keys`
    content: pa.FixedSizeBinaryArray  # [N] of KEY_TYPE, each once

    @classmethod
    def of(cls, row: Int64, sample: npt.NDArray[np.int32], content: Hashes) -> Self:
        """Args: columns of all requests of a job [N], in any order."""
        answer = answer_keys(row, sample)
        order = np.argsort(answer)
        place = np.ascontiguousarray(sample[order], "<i4").view(np.uint8).reshape(-1, 4)
        alike = np.concatenate([content[order], place], axis=1)
        equal = _equal_before(as_binary(alike)).astype("<i4").view(np.uint8).reshape(-1, 4)
        return cls(answer[order], as_binary(np.concatenate([alike, equal], axis=1)))

    def draw_keys(self, answer: Int64) -> Int64:
        """What the draws of some answers depend on instead of their row: 64 bits of the key."""
        key = as_bytes(self.content)[np.searchsorted(self.answer, answer)]
        content = np.ascontiguousarray(key[:, :8]).view("<u8").reshape(-1)
        equal = np.ascontiguousarray(key[:, -4:]).view("<u4").reshape(-1)
        mixed: Int64 = (content + equal * _SPREAD).view(np.int64)
        return mixed

    def find(self, content: pa.Array | pa.ChunkedArray) -> Int64:
        """The place of each key (KEY_TYPE) among these answers, −1 where it is not one of them."""
        found = pc.fill_null(pc.index_in(content, value_set=self.content), -1)
        return np.asarray(found.to_numpy(), np.int64)

    @property
    def row(self) -> Int64:
        return self.answer // MOST_ANSWERS

    def write(self, folder: Path, job_id: str) -> None:
        """Keeps them in `folder` as those of the job `job_id`."""
        columns = {"row": self.row, "output_index": (self.answer % MOST_ANSWERS).astype(np.int32)}
        table = pa.table({**columns, "key": self.content})
        write_table(folder / KEYS_FILE, table.replace_schema_metadata({"job_id": job_id}))


def has_keys(folder: Path, job_id: str) -> bool:
    """Whether `folder` has the keys of the job `job_id`."""
    path = folder / KEYS_FILE
    if not path.is_file():
        return False
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return False
    return bool(metadata.get(b"job_id") == job_id.encode())


def read_keys(folder: Path) -> AnswerKeys:
    """Raises PlanError where `folder` has none that can be read."""
    path = folder / KEYS_FILE
    try:
        table = pq.read_table(path)
        row, sample = table["row"].to_numpy(), table["output_index"].to_numpy()
        key = as_binary(as_bytes(table["key"].cast(KEY_TYPE)))
        return AnswerKeys(answer_keys(row, sample), key)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise PlanError(
            f"cannot read {path}: {error}",
            "execute the plan that the run was made with once more, which writes it anew",
        ) from error


def _equal_before(values: pa.FixedSizeBinaryArray) -> Int64:
    """How many values before each one equal it."""
    code = values.dictionary_encode().indices.to_numpy()
    order = np.argsort(code, kind="stable")
    is_first = np.diff(code[order], prepend=-1) != 0
    place = np.arange(len(code))
    count = np.empty(len(code), np.int64)
    count[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return count
