"""What a run has done, counted from its files alone. Takes no lock, reads no texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.data.results import PARTS, STEPS, keys_of, of_each, read_columns, read_part

_STEPS = pa.schema(
    [
        ("attempt", pa.int64()),
        ("start_s", pa.float64()),
        ("step_s", pa.float64()),
        ("finished", pa.int64()),
        ("output_tokens", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    ok: int
    errors: int  # error rows that the engine made


@dataclass(frozen=True, slots=True)
class StepSums:
    """Of one attempt, as far as its steps are on disk."""

    seconds: float = 0.0  # from the beginning of generation to the end of the last step
    finished: int = 0
    output_tokens: int = 0


def count_answers(run_dir: Path) -> AnswerCounts:
    """Answers of a run, each counted once. Raises PlanError where a part cannot be read."""
    ok, errors = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    names = ["row", "output_index", "status"]
    for part in of_each(run_dir, PARTS, lambda path: read_part(path, names)):
        keys, is_ok = keys_of(part), pc.equal(part["status"], "ok").to_numpy()
        ok.append(keys[is_ok])
        errors.append(keys[~is_ok])
    answered = np.unique(np.concatenate(ok))
    failed = np.setdiff1d(np.concatenate(errors), answered)
    return AnswerCounts(len(answered), len(failed))


def sum_steps(run_dir: Path, attempt: int) -> StepSums:
    """What attempt number `attempt`, the last one, has done. Raises PlanError."""
    steps = pa.concat_tables(
        [_STEPS.empty_table(), *of_each(run_dir, STEPS, lambda path: _steps_of(path, attempt))],
        promote_options="permissive",
    )
    if not steps.num_rows:
        return StepSums()
    return StepSums(
        float(pc.max(pc.add(steps["start_s"], steps["step_s"])).as_py()),
        int(pc.sum(steps["finished"]).as_py()),
        int(pc.sum(steps["output_tokens"]).as_py() or 0),
    )


def _steps_of(path: Path, attempt: int) -> pa.Table:
    table = read_columns(path, ["attempt", "start_s", "step_s", "finished", "output_tokens"])
    if "output_tokens" not in table.column_names:  # of an earlier version
        table = table.append_column("output_tokens", pa.nulls(table.num_rows, pa.int64()))
    return table.filter(pc.equal(table["attempt"], attempt))
