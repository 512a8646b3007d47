"""Whether a run folder goes on with a plan, and with which of its answers.

It does with every plan of the same model and settings that has a row in common with it: answers
are kept by content, so that the input may change.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.answer_keys import AnswerKeys, read_keys
from blendrun.data.content import CONTENT_BYTES, as_bytes
from blendrun.data.manifest import Manifest
from blendrun.data.renumber import unused_keys
from blendrun.data.results import ResultJournal
from blendrun.errors import PlanError
from blendrun.schedule.plan_file import REQUESTS_FILE, sidecar_folder, window_paths
from blendrun.schedule.plan_record import Plan
from blendrun.tree.store import PLAN_AGAIN


class Overlap(NamedTuple):
    """What a changed input has in common with the run."""

    num_kept: int  # answers, error rows among them
    num_new: int  # rows of which no answer was ever wanted


def plan_keys(path: Path, plan: Plan) -> AnswerKeys:
    """The answers that the plan at `path` wants, over all of its windows. Raises PlanError."""
    return keys_in(sidecar_folder(window) for window in window_paths(path, plan))


def keys_in(folders: Iterable[Path]) -> AnswerKeys:
    """The answers that the plans with these folders of sidecars want. Raises PlanError."""
    rows, samples = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    contents = [np.zeros((0, CONTENT_BYTES), np.uint8)]
    for folder in folders:
        try:
            table = pq.read_table(folder / REQUESTS_FILE, columns=["row", "sample", "content"])
        except (OSError, pa.ArrowException) as error:
            raise PlanError(f"cannot read {folder / REQUESTS_FILE}: {error}", PLAN_AGAIN) from error
        rows.append(table["row"].to_numpy())
        samples.append(table["sample"].to_numpy())
        contents.append(as_bytes(table["content"]))
    return AnswerKeys.of(np.concatenate(rows), np.concatenate(samples), np.concatenate(contents))


def check_continues(
    journal: ResultJournal, manifest: Manifest, identity: Mapping[str, Any], keys: AnswerKeys
) -> Overlap | None:
    """What the run keeps for a job with these `keys`; None where it is the same job.

    Raises:
        PlanError: the model or a setting is another, or the run has answers and no row in common.
    """
    run_dir = journal.run_dir
    settings = {name: value for name, value in identity.items() if name != "job_id"}
    manifest.check_same_job(settings, run_dir)
    if manifest.identity.get("job_id") == identity["job_id"]:
        return None
    old, finished = read_keys(run_dir), journal.finished()
    place, set_aside = keys.find(old.content), keys.find(unused_keys(run_dir))
    known = np.concatenate([place[place >= 0], set_aside[set_aside >= 0]])
    if len(finished) and not len(known):
        manifest.check_same_job(identity, run_dir)
    kept = (place >= 0) & np.isin(old.answer, finished)
    is_new = np.ones(len(keys.answer), np.bool_)
    is_new[known] = False
    num_kept = int(kept.sum()) + len(np.unique(set_aside[set_aside >= 0]))
    return Overlap(num_kept, len(np.unique(keys.row[is_new])))
