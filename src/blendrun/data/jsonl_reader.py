"""JSON Lines in binary, line by line, also of packed files.

Knows lines, not what is in them. Memory: one batch of lines.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import pyarrow as pa

from blendrun.data.locations import Location
from blendrun.errors import InputError

_BATCH_ROWS = 4096
_BATCH_BYTES = 2**20  # small, so that no worker is left with a large last piece
_BUFFER_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines that are rows, without the blanks around them; lists of equal length."""

    numbers: list[int] = field(default_factory=list)  # physical line number, from 1
    contents: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def split(self, at: int) -> tuple["Lines", "Lines"]:
        """The first `at` lines, and the others."""
        numbers, contents = self.numbers, self.contents
        return Lines(numbers[:at], contents[:at]), Lines(numbers[at:], contents[at:])


def read_lines(
    location: Location, limit: int | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[Lines]:
    """Lines of the file in batches, the first `limit` of them; blank lines are not rows.

    `progress` is told the bytes of the file read so far, after each batch.

    Raises:
        InputError: the file cannot be opened or decompressed.
    """
    try:
        with location.open("rb") as raw, _decompressed(location.name, raw) as stream:
            for batch in _batches(stream, limit):
                if progress:
                    progress(raw.tell())
                yield batch
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {location}: {error}") from error


def _decompressed(name: str, raw: BinaryIO) -> BinaryIO:
    stream: Any = raw
    if name.lower().endswith(".gz"):
        stream = gzip.GzipFile(fileobj=raw)
    elif name.lower().endswith(".zst"):
        stream = pa.CompressedInputStream(raw, "zstd")  # reads one frame after the other
    elif isinstance(raw, io.BufferedReader):
        return raw
    return cast(BinaryIO, io.BufferedReader(stream, _BUFFER_BYTES))


def _batches(stream: BinaryIO, limit: int | None) -> Iterator[Lines]:
    batch, num_bytes, num_rows = Lines(), 0, 0
    for number, line in enumerate(stream, start=1):
        if limit is not None and num_rows == limit:
            break
        content = (line.removeprefix(_BOM) if number == 1 else line).strip(_BLANK)
        if not content:
            continue
        batch.numbers.append(number)
        batch.contents.append(content)
        num_rows += 1
        num_bytes += len(content)
        if len(batch) >= _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = Lines(), 0
    if len(batch):
        yield batch
