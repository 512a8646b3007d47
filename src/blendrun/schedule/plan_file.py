"""The plan on disk: a small readable `plan.json`, and its sidecars in a folder beside it.

`<name>.data/` holds the requests in scheduled order, the tree, the rows set aside and the token
store. Input files are named relative to the plan, so that both can move together. Knows how to
keep a plan, not how to make one.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.config import from_table
from blendrun.data.disk import TEMP_SUFFIX, atomic_file
from blendrun.data.sources import SourceFile
from blendrun.data.token_store import OFFSETS_FILE, TOKENS_FILE, TokenStore
from blendrun.errors import InputError, PlanError
from blendrun.tree.prefix_tree import PrefixTree
from blendrun.tree.store import PLAN_AGAIN, read_tree

FORMAT = "blendrun-plan"
VERSION = 3
REQUESTS_FILE = "requests.parquet"
TREE_FILE = "tree.parquet"
REJECTED_FILE = "rejected.parquet"
_SIDECARS = {REQUESTS_FILE, TREE_FILE, REJECTED_FILE, TOKENS_FILE, OFFSETS_FILE}


@dataclass(frozen=True, slots=True)
class PlanModel:
    spec: str  # as `--model` takes it; a local path is absolute
    name: str
    fingerprint: str  # of config and tokenizer; empty for a bare shape, which cannot be executed
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanCounts:
    rows: int
    requests: int
    rejected: int
    prompt_tokens: int
    unique_prompt_tokens: int  # before splitting
    computed_prompt_tokens: int  # expected in the planned order
    expected_output_tokens: int
    prefix_nodes: int
    kv_capacity_tokens: int  # of the planned hardware
    lengths_from: Mapping[str, int]  # requests by origin of their expected output length
    rejected_by_code: Mapping[str, int]

    @property
    def sharing_possible(self) -> float:
        return _saved_frac(self.prompt_tokens, self.unique_prompt_tokens)

    @property
    def sharing_kept(self) -> float:
        return _saved_frac(self.prompt_tokens, self.computed_prompt_tokens)


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Seconds on the planned hardware; formulas in docs/cost-model.md."""

    compute_s: float  # T_comp, nothing shared
    shared_compute_s: float  # with every shared prefix computed once
    memory_s: float  # T_mem
    density: float | None  # shared compute over memory; None without KV reads
    ideal_s: float
    practical_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    format: str
    version: int
    blendrun: str  # version that wrote it
    created: str  # ISO 8601, UTC
    job_id: str  # hash of inputs, model and sampling: what the answers depend on
    model: PlanModel
    hardware: str
    hardware_reason: str
    policy: str
    admission: str  # how the batcher takes requests: one list, two-ended, two lists
    budget: str  # of prefill in a step: fixed, or the ratio of compute to KV reads
    tp: int
    dp: int
    cost: str
    counts: PlanCounts
    times: PlanTimes
    settings: Mapping[str, Any]
    settings_from: Mapping[str, str]  # flag, file or default
    warnings: tuple[str, ...]
    sources: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan and its sidecars, opened."""

    plan: Plan
    path: Path
    sources: tuple[SourceFile, ...]  # with absolute paths
    requests: pa.Table  # in scheduled order
    rejected: pa.Table
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


def _check_replaceable(path: Path, folder: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder", f"name the plan in it: -o {path / 'plan.json'}")
    is_plan = path.is_file() and FORMAT.encode() in path.read_bytes()[:1000]
    if path.exists() and not is_plan:
        raise InputError(f"{path} exists and is not a plan", "give the plan another name with -o")
    strangers = {p.name for p in folder.iterdir()} - _SIDECARS if folder.is_dir() else set()
    if strangers or (folder.exists() and not folder.is_dir()):
        raise InputError(
            f"{folder} is where the plan's side files go, and holds something else",
            "give the plan another name with -o",
        )


def write_sidecars(folder: Path, plan: Plan, requests: pa.Table, rejected: pa.Table) -> None:
    """Write the requests, in scheduled order, and the rows set aside."""
    requests = requests.replace_schema_metadata(_stamp(plan))
    pq.write_table(requests, folder / REQUESTS_FILE, compression="zstd")
    pq.write_table(rejected, folder / REJECTED_FILE, compression="zstd")


def write_plan(path: Path, plan: Plan, sources: tuple[SourceFile, ...]) -> None:
    """Write `plan.json` last, so that a plan that exists has its sidecars."""
    folder = path.parent.resolve()
    relative = [
        dataclasses.replace(source, path=os.path.relpath(source.path, folder)).to_dict()
        for source in sources
    ]
    table = dataclasses.asdict(plan) | {"sources": relative}
    with atomic_file(path) as file:
        file.write(json.dumps(table, indent=1, allow_nan=False).encode() + b"\n")


def read_plan(path: Path) -> StoredPlan:
    """Open a plan with everything beside it.

    Raises:
        PlanError: it is no plan, is of another version, or a sidecar is missing or broken.
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
    folder = sidecar_folder(path)
    base = path.parent.resolve()
    sources = tuple(
        SourceFile.from_dict({**source, "path": os.path.normpath(base / str(source["path"]))})
        for source in plan.sources
    )
    stored = StoredPlan(
        plan,
        path,
        sources,
        _read_table(folder / REQUESTS_FILE),
        _read_table(folder / REJECTED_FILE),
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


def _saved_frac(total: int, computed: int) -> float:
    return 1 - computed / total if total else 0.0
