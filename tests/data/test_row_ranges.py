"""Answers divided by row hold what all of them together do, and leave nothing behind."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from blendrun.data import row_ranges
from blendrun.data.answers import answers_table
from blendrun.data.results import ResultJournal, read_answers
from blendrun.data.row_ranges import row_ranges as divided

NUM_ROWS = 97


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose rows ended in random order, the first of them twice: as an error and answered."""
    rows = np.random.default_rng(0).permutation(NUM_ROWS)
    with ResultJournal(tmp_path / "run") as journal:
        for part in np.array_split(rows, 9):
            journal.append(_answers(part, errors=part == rows[0]))
        journal.append(_answers(rows[:1], errors=np.zeros(1, bool)))
    return tmp_path / "run"


def _answers(rows: np.ndarray, errors: np.ndarray) -> pa.Table:
    n = len(rows)
    return answers_table(
        row=rows,
        output_text=[f"answer {row}" for row in rows],
        output_token_ids=[[int(row)] * 5 for row in rows],
        finish_reason=["stop"] * n,
        num_prompt_tokens=np.full(n, 3, np.int32),
        num_cached_tokens=np.zeros(n, np.int32),
        error=["bad: luck" if error else None for error in errors],
    )


@pytest.mark.parametrize("range_bytes", [1, 500, 3000, 10**9])
def test_ranges_together_are_all_answers_in_order(
    range_bytes: int, run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_ranges, "_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(row_ranges, "_PENDING_BYTES", 700)
    with divided(run_dir, NUM_ROWS) as ranges:
        assert [row for one in ranges for row in one.rows] == list(range(NUM_ROWS))
        parts = [one.read() for one in ranges]
        for one, part in zip(ranges, parts, strict=True):
            assert set(part["row"].to_pylist()) == set(one.rows)
    assert (len(ranges) == 1) == (range_bytes == 10**9)
    assert pa.concat_tables(parts).combine_chunks() == read_answers(run_dir)
    assert not list(run_dir.glob("ranges*"))


def test_answers_of_rows_that_the_job_does_not_have_are_not_passed_over(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_ranges, "_RANGE_BYTES", 500)
    with divided(run_dir, NUM_ROWS - 10) as ranges:
        assert sum(one.read().num_rows for one in ranges) == NUM_ROWS
