"""The run loop around a backend that makes up tokens."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from blendrun.data.results import read_answers, read_steps
from blendrun.errors import BackendError
from tiny_jobs import cost_model
from tiny_loops import MAX_TOKENS, Job


def test_every_request_is_answered_once(tmp_path: Path):
    job = Job(tmp_path).run()
    answers = read_answers(tmp_path)
    assert answers["row"].to_pylist() == [0, 10, 20, 30, 40, 50]
    assert answers["num_output_tokens"].to_pylist() == MAX_TOKENS
    assert answers["output_token_ids"].to_pylist()[1] == [4, 5, 6, 7]
    assert answers["output_text"].to_pylist()[1] == "4 5 6 7"
    assert set(answers["finish_reason"].to_pylist()) == {"length"}
    assert answers["num_cached_tokens"].to_pylist() == [0, 3, 3, 3, 3, 3]
    job.cache.check_integrity(100)


def test_steps_are_recorded_as_they_were(tmp_path: Path):
    job = Job(tmp_path).run()
    steps = read_steps(tmp_path)
    batches = job.backend.batches
    assert steps["step"].to_pylist() == list(range(1, len(batches) + 1))
    assert set(steps["attempt"].to_pylist()) == {3}
    assert steps["prefill_tokens"].to_pylist() == [b.num_prefill_tokens for b in batches]
    assert steps["decode_tokens"].to_pylist() == [b.num_decodes for b in batches]
    assert sum(steps["finished"].to_pylist()) == 6
    assert sum(steps["prefill_tokens"].to_pylist()) == 4 + 5  # the prefix once, and six ends
    assert set(steps["model_s"].to_pylist()) == {0.5}
    assert steps["running"].to_pylist()[-1] == steps["waiting"].to_pylist()[-1] == 0
    starts, seconds = steps["start_s"].to_numpy(), steps["step_s"].to_numpy()
    assert (np.diff(starts) >= seconds[:-1] - 1e-9).all()


def test_predictions_count_the_tokens_of_the_step(tmp_path: Path):
    Job(tmp_path).run()
    steps = read_steps(tmp_path)
    first_s = steps["predicted_compute_s"].to_pylist()[0]
    cost = cost_model()
    num_logits = 3 if steps["running"].to_pylist()[0] >= 2 else 1
    prompt_s = cost.prefill_s(0, 4) + (num_logits - 1) * cost.prefill_s(3, 4)
    assert first_s == pytest.approx(float(prompt_s + cost.head_s(num_logits)), rel=0.05)
    assert steps["predicted_memory_s"].to_pylist()[0] == 0  # nothing decodes yet
    assert steps["predicted_memory_s"].to_pylist()[1] > 0


def test_progress_tells_saved_rows_and_tokens(tmp_path: Path):
    job = Job(tmp_path).run()
    last = job.advances[-1]
    assert len(job.advances) == len(job.backend.batches)
    assert (last.saved_rows, last.running, last.waiting) == (6, 0, 0)
    assert last.output_tokens == sum(MAX_TOKENS)
    saved = [advance.saved_rows for advance in job.advances]
    assert saved == sorted(saved)


def test_a_failing_backend_loses_only_what_is_not_finished(tmp_path: Path):
    job = Job(tmp_path, flush_interval_s=1e9, fail_at=3)
    with pytest.raises(BackendError, match="device is gone"):
        job.run()
    answers = read_answers(tmp_path)
    assert answers["row"].to_pylist() == [0, 20]  # of one and two tokens
    assert read_steps(tmp_path).num_rows == 2


def test_results_wait_for_the_flush_interval_and_are_saved_at_the_end(tmp_path: Path):
    job = Job(tmp_path, flush_interval_s=1e9).run()
    assert len(list((tmp_path / "parts").iterdir())) == 1
    assert [advance.saved_rows for advance in job.advances] == [0] * len(job.advances)
    assert read_answers(tmp_path).num_rows == 6


def test_a_row_without_numbers_becomes_an_error_row_and_the_rest_goes_on(tmp_path: Path):
    Job(tmp_path, bad=3).run()
    answers = read_answers(tmp_path).to_pylist()
    assert [a["status"] for a in answers] == ["ok", "ok", "ok", "error", "ok", "ok"]
    assert answers[3]["error"].startswith("non_finite_logits: ")
    assert answers[3]["output_text"] is None


def test_a_request_that_cannot_run_is_answered_with_its_reason(tmp_path: Path):
    job = Job(tmp_path)
    job.loop.fail(5, "needs_more_memory: much")
    job.run()
    parts = [pq.read_table(path) for path in sorted((tmp_path / "parts").iterdir())]
    told = pa.concat_tables(parts).filter(pc.is_valid(pc.field("error"))).to_pylist()
    assert [(row["row"], row["error"]) for row in told] == [(50, "needs_more_memory: much")]
