"""A `.gguf` file as a Hugging Face checkpoint folder, converted once and cached.

The folder holds config and tokenizer files from the first call on, and the float32 weights once
someone asked for them. A lock lets one process convert while others wait; renames make what is
in the folder complete at any moment.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blendrun.data.gguf_config import generation_config, hf_config, read_metadata
from blendrun.data.gguf_tokenizer import build_tokenizer
from blendrun.data.gguf_weights import list_tensors
from blendrun.data.safetensors_stream import NamedSource, split_shards, write_safetensors
from blendrun.errors import InputError
from blendrun.units import GIB, KIB, MIB

_CONVERTER_VERSION = 1  # a change here converts every file anew
_SHARD_BYTES = 4 * GIB
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def convert_gguf(path: Path, cache_dir: Path, weights: bool = True) -> Path:
    """The checkpoint folder for the GGUF file `path`, made under `cache_dir` where missing.

    Without `weights` only config and tokenizer files are sure to be there.

    Raises:
        InputError: the file cannot be read or holds a model or tokenizer that is not supported.
    """
    try:
        folder = cache_dir / "models" / f"{_safe_name(path.stem)}-{content_hash(path)}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        if _is_done(folder, weights):
            return folder
        with _locked(folder):
            if not _is_done(folder, weights):
                _convert(path, folder, weights)
    except OSError as error:
        raise InputError(f"cannot convert {path}: {error}") from error
    return folder


def content_hash(path: Path) -> str:
    """Hash of a file's size, head, tail and evenly spaced pieces: fast for any size."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_CONVERTER_VERSION} {size}".encode())
    with path.open("rb") as file:
        digest.update(file.read(8 * MIB))
        for part in range(1, 65):
            file.seek(max(0, size * part // 64 - 64 * KIB))
            digest.update(file.read(64 * KIB))
    return digest.hexdigest()[:16]


def _convert(path: Path, folder: Path, weights: bool) -> None:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError) as error:
        raise InputError(f"{path} is not a readable GGUF file: {error}") from error
    metadata = read_metadata(reader)
    config = hf_config(metadata, reader)
    tensors = list_tensors(reader, metadata["general.architecture"], config)
    if not _is_done(folder, weights=False):
        _write_small_files(folder, metadata, config)
    if weights:
        _write_weights(folder, tensors)


def _write_small_files(folder: Path, metadata: dict[str, Any], config: dict[str, Any]) -> None:
    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    tokenizer, tokenizer_config = build_tokenizer(metadata)
    tokenizer.save(str(temporary / "tokenizer.json"))
    _write_json(temporary / "tokenizer_config.json", tokenizer_config)
    _write_json(temporary / "generation_config.json", generation_config(metadata))
    _write_json(temporary / "config.json", config)
    temporary.rename(folder)


def _write_weights(folder: Path, tensors: list[NamedSource]) -> None:
    """Shards under temporary names, then renamed; the index comes last and means complete."""
    shards = split_shards(tensors, _SHARD_BYTES)
    if len(shards) == 1:
        _write_shard(folder / _SINGLE, shards[0])
        return
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        name = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / name, shard)
        weight_map |= {tensor.name: name for tensor in shard}
    total = sum(tensor.num_bytes for tensor in tensors)
    partial = folder / f"{_INDEX}.part"
    _write_json(partial, {"metadata": {"total_size": total}, "weight_map": weight_map})
    partial.rename(folder / _INDEX)


def _write_shard(path: Path, tensors: list[NamedSource]) -> None:
    partial = path.with_name(f"{path.name}.part")
    write_safetensors(partial, tensors)
    partial.rename(path)


def _write_json(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _is_done(folder: Path, weights: bool) -> bool:
    if not weights:
        return (folder / "config.json").is_file()
    return (folder / _SINGLE).is_file() or (folder / _INDEX).is_file()


def _safe_name(stem: str) -> str:
    return re.sub(r"[^\w.-]+", "-", stem)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock beside `folder`; the system drops it when a process dies."""
    descriptor = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
