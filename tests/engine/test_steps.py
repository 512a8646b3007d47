"""Steps that are launched before the tokens of the last are there."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from blendrun.data.results import read_answers, read_steps
from blendrun.data.unfinished import read_unfinished
from blendrun.engine import deadline
from blendrun.engine.deadline import Deadline
from blendrun.engine.steps import Steps
from blendrun.errors import BackendError, TimeLimitError
from tiny_loops import MAX_TOKENS, Job

EOS = 6  # the third token of an answer
EARLY = [1, 3]  # requests that it ends before their limit


def answers(job: Job) -> list[dict]:
    return read_answers(job.run_dir).to_pylist()


def in_turn(folder: Path, **how) -> list[dict]:
    return answers(Job(folder / "in turn", **how).run())


def test_a_step_is_taken_when_the_next_has_been_launched(tmp_path: Path):
    job = Job(tmp_path, is_late=True).run()
    events, last = job.backend.events, len(job.backend.batches)
    order = [("launch", 1)]
    for step in range(2, last + 1):
        order += [("launch", step), ("take", step - 1)]
    assert events == [*order, ("take", last)]
    assert len(job.advances) == last


@pytest.mark.parametrize("eos", [(), (EOS,), (5, 6), (4,)])
@pytest.mark.parametrize("bad", [-1, 3])
def test_answers_are_those_of_steps_in_turn(eos: tuple[int, ...], bad: int, tmp_path: Path):
    job = Job(tmp_path, is_late=True, eos=eos, bad=bad).run()
    assert answers(job) == in_turn(tmp_path, eos=eos, bad=bad)
    assert all(batch.request[batch.needs_logits].size for batch in job.backend.batches[1:])


def test_each_early_end_costs_one_token(tmp_path: Path):
    job, other = Job(tmp_path / "late", is_late=True, eos=(EOS,)), Job(tmp_path / "b", eos=(EOS,))
    late, turn = (read_steps(one.run().run_dir) for one in (job, other))

    def total(steps, name: str) -> int:
        return sum(steps[name].to_pylist())

    assert total(late, "decode_tokens") == total(turn, "decode_tokens") + len(EARLY)
    assert total(late, "output_tokens") == total(turn, "output_tokens") == 1 + 3 + 2 + 3 + 3 + 2
    assert total(late, "finished") == total(turn, "finished") == len(MAX_TOKENS)


@pytest.mark.parametrize("step", [2, 4])
def test_a_step_whose_tokens_are_needed_is_taken_before_the_next(step: int, tmp_path: Path):
    job = Job(tmp_path, is_late=True, eos=(EOS,), needs=(step,)).run()
    events = job.backend.events
    assert events.index(("take", step)) < events.index(("launch", step + 1))
    assert events.index(("take", step - 1)) > events.index(("launch", step))
    assert answers(job) == in_turn(tmp_path, eos=(EOS,))


@pytest.mark.parametrize("eos", [(), (15,)])
def test_nobody_is_sent_back_with_a_token_on_its_way(eos: tuple[int, ...], tmp_path: Path):
    how = {"eos": eos, "num_pages": 10, "max_tokens": [12, 14, 16, 12, 14, 16]}
    job = Job(tmp_path, is_late=True, **how).run()
    assert job.batcher.preemptions > 0
    events = job.backend.events
    for batch in job.backend.batches:
        if len(batch.freed.slots):
            assert events.index(("take", batch.step - 1)) < events.index(("launch", batch.step))
    assert answers(job) == in_turn(tmp_path, **how)


def test_requests_that_leave_take_all_of_their_tokens_along(tmp_path: Path):
    job = Job(tmp_path, is_late=True, max_tokens=[150] * 6)
    with job.journal:
        for _ in range(4):
            job.loop._step()
        drawn = sum(int(batch.needs_logits.sum()) for batch in job.backend.batches)
        given, begun = job.loop.release(1e9, 10**6)
    assert len(given) > 0
    assert job.backend.events[-1] == ("take", 4)
    told = sum(len(row["token_ids"]) for row in begun.to_pylist())
    assert told + sum(len(answer.token_ids) for answer in job.generations.begun()) == drawn


def test_a_broken_step_loses_what_was_not_taken(tmp_path: Path):
    job = Job(tmp_path, is_late=True, flush_interval_s=1e9, fail_at=4)
    with pytest.raises(BackendError, match="device is gone"):
        job.run()
    assert ("take", 2) in job.backend.events
    assert ("take", 3) not in job.backend.events
    kept = sum(len(row["token_ids"]) for row in read_unfinished(tmp_path).to_pylist())
    kept += sum(len(row["output_token_ids"]) for row in answers(job))
    assert kept == sum(int(batch.needs_logits.sum()) for batch in job.backend.batches[:2])


def test_the_time_limit_leaves_time_for_the_step_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ticks = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr(deadline, "time", clock)
    job = Job(tmp_path, is_late=True, deadline=Deadline(0.0, 4.0))
    with pytest.raises(TimeLimitError):
        job.run()
    taken = [step for what, step in job.backend.events if what == "take"]
    assert taken == [batch.step for batch in job.backend.batches]


def test_records_follow_each_other_and_no_time_is_counted_twice(tmp_path: Path):
    job = Job(tmp_path, is_late=True, eos=(EOS,)).run()
    steps = read_steps(tmp_path)
    assert steps["step"].to_pylist() == [batch.step for batch in job.backend.batches]
    starts, seconds = steps["start_s"].to_numpy(), steps["step_s"].to_numpy()
    assert (seconds >= 0).all()
    assert (np.diff(starts) >= seconds[:-1] - 1e-9).all()
    kernels = sum(steps[name].to_numpy() for name in ("attention_s", "model_s", "sample_s"))
    assert (steps["schedule_s"].to_numpy() == np.maximum(seconds - kernels, 0)).all()
    assert [a.output_tokens <= b.output_tokens for a, b in pairwise(job.advances)]


def test_a_token_that_is_nobodys_and_is_kept_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    right = Steps._take

    def keeps(steps, flight) -> None:
        flight.dropped[:] = False
        right(steps, flight)

    monkeypatch.setattr(Steps, "_take", keeps)
    job = Job(tmp_path, is_late=True, eos=(EOS,)).run()
    drawn = sum(read_steps(job.run_dir)["output_tokens"].to_pylist())
    assert drawn != sum(row["num_output_tokens"] for row in answers(job))


def test_a_request_that_is_never_let_go_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Steps, "_end_late", lambda _steps, _flight: None)
    job = Job(tmp_path, is_late=True, eos=(EOS,)).run()
    assert sum(read_steps(job.run_dir)["finished"].to_pylist()) > len(MAX_TOKENS)
