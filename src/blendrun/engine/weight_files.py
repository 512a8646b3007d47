"""The safetensors files of a checkpoint: which there are, and the parts of tensors in them.

Knows file formats; knows no model.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from blendrun.errors import InputError

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """One tensor in an open file; nothing of it is read yet."""

    name: str
    path: Path
    shape: tuple[int, ...]
    _file: Any

    def read(self, part: tuple[slice, ...]) -> Tensor:
        """That part of the tensor; the rest stays on disk. One slice for each dimension."""
        tensor: Tensor = self._file.get_slice(self.name)[part]
        return tensor


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint folder, by its index where it has one.

    Raises:
        InputError: the index is broken, or there are several files and none.
    """
    index = folder / _INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return sorted({folder / name for name in weight_map.values()})
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{index} is not a valid index of weights: {error!r}") from error
    files = sorted(folder.glob("*.safetensors"))
    single = folder / "model.safetensors"
    if single in files:
        return [single]
    if len(files) != 1:
        raise InputError(f"{folder} has {len(files)} *.safetensors files and no {_INDEX}")
    return files


def stored_tensors(path: Path) -> Iterator[StoredTensor]:
    """The tensors of a file, each readable until the next is asked for.

    Raises:
        InputError: the file, or a part that the caller reads, is broken.
    """
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                shape = tuple(file.get_slice(name).get_shape())
                yield StoredTensor(name, path, shape, file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read weights from {path}: {error}") from error
