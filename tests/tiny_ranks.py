"""Runs on several real processes with a fake engine: no model, no torch in the ranks."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.model_files import resolve_model
from blendrun.data.results import PARTS, files_of, read_part
from blendrun.engine import attempt, execute
from blendrun.engine.settings import ExecuteSettings
from blendrun.launch.local import LocalLauncher
from blendrun.launch.rank_group import RankGroup
from soak.fake_engine import make_model
from soak.fake_rank import ENGINE, FAULTS
from tiny_jobs import SILENT, plan_job


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models need no weights, and ranks find the fake engine."""

    def find(plan: Any, _settings: Any) -> Any:
        return resolve_model(plan.model.spec, weights=False)

    monkeypatch.setattr(attempt, "find_model", find)
    monkeypatch.setattr(execute, "find_model", find)


def plan_rows(folder: Path, num_rows: int, **settings: Any) -> Path:
    """A plan of rows that are all different."""
    rows = [
        {"prompt_token_ids": [5, 6, 3 + i % 200, 3 + i // 200], "max_tokens": 8}
        for i in range(num_rows)
    ]
    (folder / "model").mkdir(parents=True, exist_ok=True)
    return plan_job(folder, rows, make_model(folder / "model"), **settings)[0]


def set_faults(folder: Path, **faults: Any) -> None:
    (folder / FAULTS).write_text(json.dumps(faults))


def run_on_ranks(
    plan: Path,
    dp: int,
    launcher: Any = None,
    note: Callable[[str], None] = lambda _: None,
    run_dir: Path | None = None,
    **settings: Any,
) -> Any:
    """Execute `plan` on `dp` ranks with the fake engine."""
    from types import SimpleNamespace

    group = RankGroup(launcher or LocalLauncher(dp), dp, ENGINE)
    events = SimpleNamespace(begin=SILENT.begin, step=SILENT.step, note=note)
    wanted = ExecuteSettings(**settings)
    return execute.execute_plan(plan, run_dir or plan.parent / "run", wanted, events, ranks=group)


def answered_rows(run_dir: Path) -> Sequence[int]:
    """Rows in the parts; a row that is there twice is there twice."""
    parts = [read_part(path, ["row", "output_index"]) for path in files_of(run_dir, PARTS)]
    return sorted(row for part in parts for row in part["row"].to_pylist())


def check_outputs(run_dir: Path, num_rows: int, errors: Sequence[int] = ()) -> None:
    """Every row is in the outputs, and was answered once."""
    table = pq.read_table(run_dir / "outputs.parquet")
    expected = [None if row in errors else f"answer {row}" for row in range(num_rows)]
    assert table["output_text"].to_pylist() == expected
    assert answered_rows(run_dir) == list(range(num_rows))
