"""The plan on disk: a small readable `plan.json`, and its sidecars in a folder beside it.

`<name>.data/` holds the requests in scheduled order, the tree, the rows set aside and the token
store. A plan in windows has a plan of each window there instead, in the order of the rows. Input
files are named relative to the plan, so that both can move together. Knows how to keep a plan, not
how to make one.
"""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.config import from_table
from blendrun.data.disk import TEMP_SUFFIX, atomic_file
from blendrun.data.locations import is_url
from blendrun.data.sources import SourceFile
from blendrun.data.token_store import OFFSETS_FILE, TOKENS_FILE, TokenStore
from blendrun.errors import InputError, PlanError
from blendrun.schedule.plan_record import FORMAT, VERSION, Plan
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.store import PLAN_AGAIN, ROW_GROUP, read_tree

REQUESTS_FILE = "requests.parquet"
TREE_FILE = "tree.parquet"
REJECTED_FILE = "rejected.parquet"
SEEN_FILE = "seen.parquet"  # output lengths of an earlier run
_SIDECARS = {REQUESTS_FILE, TREE_FILE, REJECTED_FILE, SEEN_FILE, TOKENS_FILE, OFFSETS_FILE}
_WINDOW = re.compile(r"\d{4,}\.(json|data)")


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan and its sidecars, opened."""

    plan: Plan
    path: Path
    sources: tuple[SourceFile, ...]  # with absolute paths or URLs
    requests: pa.Table  # in scheduled order
    rejected: pa.Table
    seen: pa.Table  # `request` and `output_len`: see `earlier_run.Observed.examples`
    tree: PrefixTree
    store: TokenStore


def sidecar_folder(path: Path) -> Path:
    """Folder beside the plan; only the ending `.json` is left out of its name."""
    return path.with_name(f"{path.name.removesuffix('.json')}.data")


@contextmanager
def new_sidecars(path: Path) -> Iterator[Path]:
    """A folder to fill; it takes the place of the sidecars of `path` when the block ends well.

    Raises:
        InputError: what lies at `path` or beside it is no plan of ours.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = sidecar_folder(path)
    _check_replaceable(path, folder)
    new = folder.with_name(f".{folder.name}{TEMP_SUFFIX}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):  # of a refused plan: those that hold nothing else
            for parent in made:
                parent.rmdir()


def _check_replaceable(path: Path, folder: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder", f"name the plan in it: -o {path / 'plan.json'}")
    is_plan = path.is_file() and FORMAT.encode() in path.read_bytes()[:1000]
    if path.exists() and not is_plan:
        raise InputError(f"{path} exists and is not a plan", "give the plan another name with -o")
    names = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    strangers = {name for name in names - _SIDECARS if not _WINDOW.fullmatch(name)}
    if strangers or (folder.exists() and not folder.is_dir()):
        raise InputError(
            f"{folder} is where the plan's side files go, and holds something else",
            "give the plan another name with -o",
        )


def write_sidecars(
    folder: Path,
    plan: Plan,
    requests: pa.Table,
    sequence: Int32,
    rejected: pa.Table,
    seen: pa.Table,
) -> None:
    """Write the requests in the order `sequence`, the rows set aside, and known output lengths."""
    requests = requests.replace_schema_metadata(_stamp(plan))
    path = folder / REQUESTS_FILE
    with pq.ParquetWriter(path, requests.schema, compression="zstd") as writer:
        for start in range(0, len(sequence), ROW_GROUP):  # never all of them a second time
            writer.write_table(requests.take(pa.array(sequence[start : start + ROW_GROUP])))
    pq.write_table(rejected, folder / REJECTED_FILE, compression="zstd")
    pq.write_table(seen, folder / SEEN_FILE, compression="zstd")


def write_plan(path: Path, plan: Plan, sources: tuple[SourceFile, ...]) -> None:
    """Write `plan.json` last, so that a plan that exists has its sidecars."""
    folder = path.parent.resolve()
    relative = [
        dataclasses.replace(source, path=_relative(source.path, folder)).to_dict()
        for source in sources
    ]
    table = dataclasses.asdict(plan) | {"sources": relative}
    with atomic_file(path) as file:
        file.write(json.dumps(table, indent=1, allow_nan=False).encode() + b"\n")


def read_header(path: Path) -> tuple[Plan, tuple[SourceFile, ...]]:
    """A plan without its sidecars, and its sources with absolute paths.

    Raises:
        PlanError: it is no plan, or is of another version.
    """
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(
            f"cannot read the plan {path}: {error.strerror}", "blendrun plan makes one"
        ) from error
    except ValueError as error:
        raise PlanError(f"{path} is not a plan: {error}", PLAN_AGAIN) from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise PlanError(
            f"{path} is not a plan", "make one with: blendrun plan PROMPTS -o plan.json"
        )
    if table.get("version") != VERSION:
        raise PlanError(
            f"{path} is a plan of version {table.get('version')}; this is version {VERSION}",
            PLAN_AGAIN,
        )
    try:
        plan = from_table(Plan, table, str(path))
    except InputError as error:
        raise PlanError(error.message, PLAN_AGAIN) from error
    base = path.parent.resolve()
    sources = tuple(
        SourceFile.from_dict({**source, "path": _absolute(str(source["path"]), base)})
        for source in plan.sources
    )
    return plan, sources


def _relative(path: str, folder: Path) -> str:
    return path if is_url(path) else os.path.relpath(path, folder)


def _absolute(path: str, folder: Path) -> str:
    return path if is_url(path) else os.path.normpath(folder / path)


def window_paths(path: Path, plan: Plan) -> list[Path]:
    """The plans of consecutive rows that make up a plan: itself where it has no windows."""
    return [path.parent / name for name in plan.windows] or [path]


def read_plan(path: Path) -> StoredPlan:
    """Open a plan with everything beside it.

    Raises:
        PlanError: it is no plan, is of another version, has windows, or a sidecar is missing or
            broken.
    """
    plan, sources = read_header(path)
    if plan.windows:
        raise PlanError(
            f"{path} is a plan in {len(plan.windows)} windows; this works on one of them",
            f"name one, such as {window_paths(path, plan)[0]}",
        )
    folder = sidecar_folder(path)
    stored = StoredPlan(
        plan,
        path,
        sources,
        _read_table(folder / REQUESTS_FILE),
        _read_table(folder / REJECTED_FILE),
        _read_table(folder / SEEN_FILE),
        read_tree(folder / TREE_FILE),
        _open_store(folder),
    )
    stamp = (stored.requests.schema.metadata or {}).items()
    n = plan.counts.requests
    lengths = {n, stored.requests.num_rows, stored.tree.num_requests, len(stored.store)}
    if len(lengths) != 1 or not _stamp(plan).items() <= stamp:
        raise PlanError(f"the files in {folder} do not belong to {path}", PLAN_AGAIN)
    return stored


def _stamp(plan: Plan) -> dict[bytes, bytes]:
    """What tells the sidecars of one plan from those of another."""
    return {b"job_id": plan.job_id.encode(), b"created": plan.created.encode()}


def _open_store(folder: Path) -> TokenStore:
    try:
        return TokenStore.open(folder)
    except PlanError as error:
        raise PlanError(error.message, PLAN_AGAIN) from error


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except FileNotFoundError as error:
        raise PlanError(f"the plan's file {path} is missing", PLAN_AGAIN) from error
    except (OSError, pa.ArrowException) as error:
        raise PlanError(f"cannot read {path}: {error}", PLAN_AGAIN) from error
