"""All prompts of a job as one flat array of token ids and one of offsets, memory-mapped.

Knows nothing of what a prompt came from; a request is an index.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from blendrun.data.disk import TEMP_SUFFIX, atomic_file, full_disk, make_folder, sync_folder
from blendrun.data.flat_tokens import FlatTokens
from blendrun.errors import PlanError

TOKENS_FILE = "tokens.npy"
OFFSETS_FILE = "offsets.npy"
_HEADER_BYTES = 128  # fixed, so that the length can be filled in once it is known


@dataclass(frozen=True, slots=True, eq=False)
class TokenStore:
    """Prompt `i` is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: npt.NDArray[np.int32]  # [total], memory-mapped, read-only
    offsets: npt.NDArray[np.int64]  # [num_prompts + 1]

    @classmethod
    def open(cls, folder: Path) -> "TokenStore":
        """The store in `folder`.

        Raises:
            PlanError: the files are missing, cut short or do not belong together.
        """
        try:
            tokens = np.load(folder / TOKENS_FILE, mmap_mode="r", allow_pickle=False)
            offsets = np.load(folder / OFFSETS_FILE, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise PlanError(f"cannot read the token store {folder}: {error}") from error
        fits = (
            tokens.dtype == np.int32
            and offsets.dtype == np.int64
            and tokens.ndim == offsets.ndim == 1
            and len(offsets) > 0
            and offsets[0] == 0
            and offsets[-1] == len(tokens)
            and bool(np.all(offsets[1:] >= offsets[:-1]))
        )
        if not fits:
            raise PlanError(f"the token store {folder} is damaged: tokens and offsets do not match")
        return cls(tokens, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, request: int) -> npt.NDArray[np.int32]:
        """Token ids of one prompt, as a view."""
        if not 0 <= request < len(self):
            raise IndexError(f"request {request} of {len(self)}")
        return self.tokens[self.offsets[request] : self.offsets[request + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Prompt lengths in tokens, int64[num_prompts]."""
        return np.diff(self.offsets)


class TokenStoreWriter:
    """Writes a store prompt by prompt; holds the offsets in memory, never the tokens."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder
        # A store exists when its offsets do: they go first and come last.
        (folder / OFFSETS_FILE).unlink(missing_ok=True)
        self._temp = folder / (TOKENS_FILE + TEMP_SUFFIX)
        self._file: BinaryIO = self._temp.open("wb")
        self._file.write(_header(0))
        self._lengths: list[npt.NDArray[np.int64]] = []

    def append(self, prompts: FlatTokens) -> None:
        """Adds prompts."""
        self._lengths.append(prompts.lengths)
        with full_disk(self._temp):
            self._file.write(np.ascontiguousarray(prompts.tokens, "<i4").data)

    def close(self) -> TokenStore:
        """Completes both files and opens them."""
        lengths = np.concatenate([np.zeros(1, np.int64), *self._lengths])
        offsets = np.cumsum(lengths, dtype=np.int64)
        with full_disk(self._temp), self._file as file:
            file.seek(0)
            file.write(_header(int(offsets[-1])))
            file.flush()
            os.fsync(file.fileno())
        self._temp.replace(self._folder / TOKENS_FILE)
        sync_folder(self._folder)
        with atomic_file(self._folder / OFFSETS_FILE) as file:
            np.save(file, offsets, allow_pickle=False)
        return TokenStore.open(self._folder)

    def abort(self) -> None:
        """Gives up: nothing of the store stays."""
        self._file.close()
        self._temp.unlink(missing_ok=True)
        (self._folder / OFFSETS_FILE).unlink(missing_ok=True)


def _header(num_tokens: int) -> bytes:
    """Header of a .npy file (format 1.0) of int32[num_tokens], always `_HEADER_BYTES` long."""
    described = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({num_tokens},), }}"
    text_len = _HEADER_BYTES - 10
    text = described.ljust(text_len - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + text_len.to_bytes(2, "little") + text.encode("ascii")
