"""The manifest of a run folder: which job it answers, with which settings, in which attempts."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blendrun.config import from_table
from blendrun.data.disk import atomic_file
from blendrun.errors import InputError, PlanError

MANIFEST_FILE = "manifest.json"
LOG_FILE = "run.log"
_FORMAT, _VERSION = "blendrun-run", 3
# where the values, hashes, would tell nobody anything
_CHANGED = {
    "job_id": "no row of it is in the input any more, with its parameters",
    "model": "its model is another",
    "weights": "its weights are others",
}
_ALWAYS_WAS = {"engine": "native", "kv_dtype": "auto"}  # in runs of versions that do not say


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that worked on the run; `wall_s` is None where it was killed."""

    started: str  # ISO 8601, UTC
    load_s: float | None = None  # model loading
    generate_s: float | None = None  # from the first step to the last
    wall_s: float | None = None  # the whole command
    peak_memory_bytes: int | None = None  # resident in its process, at the last note of it
    compile_s: float | None = None  # of `load_s`, compiling the batcher


@dataclass(frozen=True, slots=True)
class Manifest:
    """`identity` is what the answers depend on: it cannot change while a run goes on."""

    format: str
    version: int
    plan: str  # absolute path when the run was made
    identity: Mapping[str, Any]
    environment: Mapping[str, Any]  # dtype, kernels, threads, versions, and why
    attempts: tuple[Attempt, ...]
    is_complete: bool
    num_answers: int | None = None  # of the whole job, without the rows set aside; None: unknown
    num_rejected: int | None = None  # rows set aside by the plan
    outputs_of: str | None = None  # hash of the inputs that a complete run's outputs are made of
    output_part_size: int | None = None  # bytes, of a complete run; None: one file

    @classmethod
    def new(
        cls,
        plan: Path,
        identity: Mapping[str, Any],
        num_answers: int | None = None,
        num_rejected: int | None = None,
    ) -> "Manifest":
        return cls(
            _FORMAT,
            _VERSION,
            str(plan.resolve()),
            identity,
            {},
            (),
            False,
            num_answers,
            num_rejected,
        )

    def check_same_job(self, identity: Mapping[str, Any], run_dir: Path) -> None:
        """Raises PlanError with the names of what differs."""
        mine = {**_ALWAYS_WAS, **self.identity}
        changed = [
            _CHANGED.get(key, f"{key} was {mine.get(key)}, now {value}")
            for key, value in identity.items()
            if mine.get(key) != value
        ]
        if changed:
            raise PlanError(
                f"{run_dir} holds another run: {'; '.join(changed)}",
                "give another --run-dir, or use the settings it was started with",
            )


def read_manifest(run_dir: Path) -> Manifest | None:
    """The manifest, or None where there is none yet.

    Raises:
        PlanError: it cannot be read, or is of another version.
    """
    path = run_dir / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_bytes())
        if not isinstance(table, dict):
            raise PlanError(f"{path} is not the manifest of a run")
        if table.get("format") != _FORMAT or table.get("version") != _VERSION:
            raise PlanError(f"{path} is not a run of this version")
        return from_table(Manifest, table, str(path))
    except (OSError, ValueError, InputError) as error:
        raise PlanError(f"cannot read {path}: {error}") from error


def write_manifest(run_dir: Path, manifest: Manifest) -> None:
    with atomic_file(run_dir / MANIFEST_FILE) as file:
        file.write(json.dumps(dataclasses.asdict(manifest), indent=1).encode() + b"\n")
