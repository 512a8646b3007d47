"""Safetensors files written tensor by tensor, in bounded memory.

The library's own writer wants a whole file in memory. This one knows the format (an 8-byte
little-endian length, a JSON header, then the bytes) and nothing about models.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


class RowSource(Protocol):
    """A float32 tensor that can be produced in pieces."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def pieces(self) -> Iterator[np.ndarray]:
        """float32 arrays that follow each other in row-major order and fill `shape`."""


@dataclass(frozen=True, slots=True)
class NamedSource:
    name: str
    source: RowSource

    @property
    def num_bytes(self) -> int:
        return 4 * int(np.prod(self.source.shape))


def write_safetensors(path: Path, tensors: Iterable[NamedSource]) -> None:
    """Writes float32 `tensors` to `path` and syncs it to disk; one piece in memory at a time."""
    tensors = list(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        shape = list(tensor.source.shape)
        header[tensor.name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            for piece in tensor.source.pieces():
                file.write(np.ascontiguousarray(piece, dtype="<f4").data)
        file.flush()
        os.fsync(file.fileno())


def split_shards(tensors: list[NamedSource], max_bytes: int) -> list[list[NamedSource]]:
    """`tensors` in groups of at most `max_bytes` (a larger tensor stands alone), order kept."""
    shards: list[list[NamedSource]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.num_bytes > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(tensor)
        room -= tensor.num_bytes
    return shards
