"""Sums of a run against sums made by hand from its step and part files."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.data.answers import answers_table
from blendrun.data.manifest import Attempt, Manifest
from blendrun.data.results import ResultJournal
from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.report.metrics import RunMetrics, read_metrics
from blendrun.report.timeline import timeline

FIELDS = dataclasses.fields(RunMetrics)


@st.composite
def metrics(draw: st.DrawFn) -> RunMetrics:
    number = st.integers(0, 1000)  # exact in both integers and floats
    return RunMetrics(*(type(f.default)(draw(number)) for f in FIELDS))


@given(metrics(), metrics(), metrics())
def test_metrics_add_up(a: RunMetrics, b: RunMetrics, c: RunMetrics):
    assert a + RunMetrics() == a
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    for f in FIELDS:
        assert getattr(a + b, f.name) == getattr(a, f.name) + getattr(b, f.name)


@given(metrics())
def test_figures_are_finite_also_where_nothing_ran(a: RunMetrics):
    for m in (a, RunMetrics()):
        for name in ("sharing_frac", "total_tokens_per_s", "mean_running", "mean_page_use_frac"):
            assert math.isfinite(getattr(m, name))


def steps_table(attempt: int, num_steps: int, seed: int, idle_s: float = 0.0) -> pa.Table:
    """Made-up records; between steps the loop spends `idle_s`."""
    random = np.random.default_rng(seed)
    columns = {name: random.integers(1, 50, num_steps) for name in STEP_SCHEMA.names}
    seconds = random.uniform(0.1, 2.0, num_steps)
    starts = np.concatenate([[0.0], np.cumsum(seconds + idle_s)[:-1]])
    columns |= {"attempt": [attempt] * num_steps, "step_s": seconds, "start_s": starts}
    columns["num_pages"], columns["rank"] = np.full(num_steps, 64), np.zeros(num_steps)
    return pa.table(columns).cast(STEP_SCHEMA)


def answers(rows: list[int], error: str | None = None) -> pa.Table:
    n = len(rows)
    return answers_table(
        row=rows,
        output_text=["x"] * n,
        output_token_ids=[[1] * (row + 1) for row in rows],
        finish_reason=[None if error else "stop"] * n,
        num_prompt_tokens=[100 + row for row in rows],
        num_cached_tokens=rows,
        error=[error] * n,
    )


def manifest(*attempts: Attempt) -> Manifest:
    return dataclasses.replace(Manifest.new(Path("plan.json"), {}), attempts=attempts)


def test_sums_are_those_of_the_files(tmp_path: Path):
    with ResultJournal(tmp_path) as journal:
        journal.append(answers([0, 3]))
        journal.append_steps(steps_table(1, 5, seed=1, idle_s=0.5))
        journal.append(answers([7], error="bad: x"))
        journal.append_steps(steps_table(2, 4, seed=2))
        journal.append(answers([1]))
    run = manifest(Attempt("a", 2.0, 9.0, 20.0), Attempt("b", 3.0, 8.0, 30.0))
    m = read_metrics(tmp_path, run)
    files = sorted((tmp_path / "steps").iterdir())
    steps = [record for path in files for record in pq.read_table(path).to_pylist()]
    assert (m.attempts, m.steps, m.answered_rows, m.error_rows) == (2, 9, 3, 1)
    assert (m.prompt_tokens, m.cached_tokens, m.output_tokens) == (100 + 103 + 101, 4, 1 + 4 + 2)
    assert (m.wall_s, m.load_s) == (50.0, 5.0)
    ends = {k: max(s["start_s"] + s["step_s"] for s in steps if s["attempt"] == k) for k in (1, 2)}
    assert m.generate_s == pytest.approx(ends[1] + ends[2])
    for name in ("prefill_tokens", "decode_tokens", "preemptions", "recomputed_tokens"):
        assert getattr(m, name) == sum(s[name] for s in steps)
    for name in ("step_s", "model_s", "attention_s", "sample_s", "schedule_s"):
        assert getattr(m, name) == pytest.approx(sum(s[name] for s in steps))
    assert m.other_s == pytest.approx(4 * 0.5)
    outside_s = sum(s["schedule_s"] + s["sample_s"] for s in steps) + 4 * 0.5
    assert m.outside_frac == pytest.approx(outside_s / m.generate_s)
    seconds = sum(s["step_s"] for s in steps)
    assert m.mean_running == pytest.approx(sum(s["running"] * s["step_s"] for s in steps) / seconds)
    assert m.mean_page_use_frac == pytest.approx(
        sum(s["pages_used"] / 64 * s["step_s"] for s in steps) / seconds
    )
    assert m.output_tokens_per_s == pytest.approx(7 / m.generate_s)
    assert m.sharing_frac == pytest.approx(4 / 304)
    assert m.computed_prompt_tokens == 300
    json.dumps(dataclasses.asdict(m))  # plain numbers


def test_seconds_of_ranks_are_rank_seconds_until_the_last_one_ends(tmp_path: Path):
    steps = [steps_table(1, n, seed=n) for n in (5, 3)]
    place = STEP_SCHEMA.names.index("rank")
    steps[1] = steps[1].set_column(place, "rank", pa.array([1, 1, 1]))
    with ResultJournal(tmp_path) as journal:
        for table in steps:
            journal.append_steps(table)
        journal.append(answers([0, 3]))
    m = read_metrics(tmp_path, manifest(Attempt("a", 2.0, 9.0, 20.0)))
    seconds = [sum(table["step_s"].to_pylist()) for table in steps]
    assert m.elapsed_s == pytest.approx(max(seconds))
    assert m.generate_s == pytest.approx(2 * max(seconds))
    assert m.step_s == pytest.approx(sum(seconds))
    assert m.other_s == pytest.approx(abs(seconds[0] - seconds[1]))
    assert m.output_tokens_per_s == pytest.approx(5 / max(seconds))


def test_an_attempt_that_was_killed_counts_as_long_as_it_is_known(tmp_path: Path):
    with ResultJournal(tmp_path) as journal:
        journal.append_steps(steps_table(1, 5, seed=1))
        table = steps_table(1, 5, seed=1)
    m = read_metrics(tmp_path, manifest(Attempt("a", 2.0)))
    seconds = sum(table["step_s"].to_pylist())
    assert m.generate_s == pytest.approx(seconds)
    assert m.wall_s == pytest.approx(2.0 + seconds)


def test_an_attempt_that_was_killed_while_loading_counts_nothing(tmp_path: Path):
    with ResultJournal(tmp_path) as journal:
        journal.append_steps(steps_table(2, 3, seed=1))
    m = read_metrics(tmp_path, manifest(Attempt("a"), Attempt("b", 1.0, 5.0, 9.0)))
    assert (m.attempts, m.steps, m.wall_s, m.load_s) == (2, 3, 9.0, 1.0)


def test_a_run_without_a_step_is_all_zeros(tmp_path: Path):
    assert read_metrics(tmp_path, manifest()) == RunMetrics()


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 100))
def test_timeline_conserves_tokens_and_time(num_steps: int, num_spans: int, seed: int):
    steps = steps_table(1, num_steps, seed)
    spans = timeline(steps, num_spans)
    assert spans.num_rows == num_spans
    end_s = spans["end_s"].to_numpy()
    width = np.diff(np.concatenate([[0.0], end_s]))
    seconds = steps["step_s"].to_numpy()
    assert end_s[-1] == pytest.approx(seconds.sum())
    assert width == pytest.approx(np.full(num_spans, seconds.sum() / num_spans))
    for rate, tokens in (
        ("prefill_tokens_per_s", "prefill_tokens"),
        ("decode_tokens_per_s", "decode_tokens"),
    ):
        total = (spans[rate].to_numpy() * width).sum()
        assert total == pytest.approx(steps[tokens].to_numpy().sum())
    for mean in ("running", "running_left", "waiting"):
        total = (spans[mean].to_numpy() * width).sum()
        assert total == pytest.approx((steps[mean].to_numpy() * seconds).sum())


def test_timeline_divides_a_step_across_spans():
    table = steps_table(1, 2, seed=0)
    columns = {name: table[name] for name in table.column_names}
    columns |= {
        "step_s": pa.array([3.0, 1.0]),
        "running": pa.array([8, 0]),
        "prefill_tokens": pa.array([300, 10]),
    }
    spans = timeline(pa.table(columns), 2)
    assert spans["end_s"].to_pylist() == [2.0, 4.0]
    assert spans["running"].to_pylist() == [8.0, 4.0]
    assert spans["prefill_tokens_per_s"].to_pylist() == [100.0, 55.0]


def test_timeline_of_nothing_is_empty():
    assert timeline(pa.table({})).num_rows == 0
