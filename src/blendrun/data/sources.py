"""The input files of a job: which they are, in which order, and whether they are still the same.

Knows names and bytes, not rows.
"""

import glob
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from blendrun.data.locations import (
    Location,
    RemoteFile,
    is_url,
    local_path,
    locate,
    remote_files,
    size_of,
)
from blendrun.data.partitions import partitions_of
from blendrun.errors import InputError, PlanError

Format = Literal["parquet", "jsonl"]

_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
    ".jsonl.zst": "jsonl",
    ".ndjson.zst": "jsonl",
}
_RUN_MARK = "run.lock"
_RUN_OUTPUTS = frozenset(
    {"outputs.parquet", "outputs", "outputs.jsonl", "outputs-jsonl", "steps", "report"}
    | {"openai-results.jsonl", "openai-errors.jsonl", "openai-results", "openai-errors"}
    | {"parts", "unused", "renumbered", "renumbered.tmp", "unfinished.parquet", "keys.parquet"}
)
_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file as it was when the plan was made."""

    path: str  # absolute, or a URL
    format: Format
    num_rows: int  # rows that the job takes from it, the first ones
    size_bytes: int
    sha256: str
    columns: tuple[tuple[str, str], ...] = ()  # JSONL: (name, kind of `data.json_kinds`)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "columns": [list(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "SourceFile":
        """Back from `to_dict`. Raises PlanError where it is not one."""
        try:
            columns = tuple((str(name), str(kind)) for name, kind in record["columns"])
            return cls(**{**record, "columns": columns})
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"not a description of an input file: {error}") from error


def inputs_hash(sources: Sequence[SourceFile]) -> str:
    """Of what outputs take from the inputs, wherever the files lie."""
    digest = hashlib.sha256()
    for source in sources:
        partitions = partitions_of(locate(source.path))
        what = (source.format, source.num_rows, source.sha256, source.columns, partitions)
        digest.update(repr(what).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def expand_paths(paths: Sequence[str]) -> list[Location]:
    """The files that `paths` name: files, folders and glob patterns, on this machine or by URL.

    Files come in the order given; those of a folder or pattern sorted by path. In folders, names
    that start with a dot or underscore and files of other kinds are passed over.

    Raises:
        InputError: nothing found, an unknown extension, or one file named twice.
    """
    found = [file for path in paths for file in _expand(path)]
    if not found:
        raise InputError("no input file given")
    seen: set[Location] = set()
    for file in found:
        same = file.resolve() if isinstance(file, Path) else file
        if same in seen:
            raise InputError(f"{file} is named twice", "each file is read once; name it once")
        seen.add(same)
    return found


def format_of(path: Location) -> Format:
    """Raises InputError where the extension is not one that is read."""
    name = path.name.lower()
    for extension, kind in _FORMATS.items():
        if name.endswith(extension):
            return kind
    hint = f"known: {', '.join(_FORMATS)}"
    if name.endswith(".json"):
        hint = "write one JSON object per line and name the file .jsonl"
    raise InputError(f"{path}: cannot tell the kind of file from its extension", hint)


def hash_file(path: Location) -> str:
    """SHA-256 of the file, hexadecimal, read in pieces. Raises InputError if unreadable."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def check_sources(sources: Sequence[SourceFile]) -> None:
    """Checks by size and hash that every input is what the plan was made from.

    Raises:
        PlanError: a file is gone or has changed; names it.
    """
    hint = "restore the file, or make a new plan"
    for source in sources:
        path = locate(source.path)
        if isinstance(path, Path) and not path.is_file():
            raise PlanError(f"the input {path} is gone", hint)
        if size_of(path) != source.size_bytes or hash_file(path) != source.sha256:
            raise PlanError(f"the input {path} has changed since the plan was made", hint)


def _expand(text: str) -> list[Location]:
    text = local_path(text)
    if is_url(text):
        return _expand_url(text)
    path = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 (keeps symlink names)
    if path.is_file():
        format_of(path)
        return [path]
    if path.is_dir():
        return [*_walk(path)]
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute pattern)
    if not matches:
        raise InputError(f"{text}: no such file, folder or pattern", "check the path")
    return [file for match in matches for file in _expand(match)]


def _expand_url(url: str) -> list[Location]:
    files, is_file = remote_files(url)
    if is_file:
        format_of(files[0])
        return [*files]
    folder = len(RemoteFile(url.rstrip("/")).parts)
    kept: list[Location] = [
        file
        for file in files
        if file.name.lower().endswith(tuple(_FORMATS))
        and not any(part.startswith((".", "_")) for part in file.parts[folder:])
    ]
    if not kept:
        raise InputError(f"no input file at {url}", f"read: {', '.join(_FORMATS)}")
    return kept


def _is_ours(folder: Path) -> bool:
    """A run folder or the side files of a plan: outputs of an earlier command, not inputs."""
    return (folder / _RUN_MARK).exists() or (folder / "offsets.npy").exists()


def _walk(folder: Path) -> list[Path]:
    files: list[Path] = []
    for root, subfolders, names in os.walk(folder):
        ours = _RUN_OUTPUTS if _RUN_MARK in names else frozenset()
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith((".", "_"))
            and name not in ours
            and not _is_ours(Path(root) / name)
        ]
        files += [
            Path(root) / name
            for name in names
            if not name.startswith((".", "_"))
            and name.lower().endswith(tuple(_FORMATS))
            and name not in ours
        ]
    if not files:
        raise InputError(f"no input file in the folder {folder}", f"read: {', '.join(_FORMATS)}")
    return sorted(files)
