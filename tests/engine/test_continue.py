"""Unfinished answers of a stopped run are continued: no token is drawn twice, none is another."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from blendrun.data.results import read_answers, read_steps
from blendrun.data.unfinished import UNFINISHED_FILE, read_unfinished
from blendrun.engine import deadline, torch_backend
from blendrun.engine.execute import execute_plan
from blendrun.engine.generations import Generations
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BackendError, PlanError, TimeLimitError
from tiny_jobs import SILENT, execute, plan_job

TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "sum", "max_tokens": 12},
    {"prompt": "the quick brown", "max_tokens": 40, "logprobs": 2},
    {"prompt": TEXT + "dog", "max_tokens": 30, "stop": ["never 42", "it is"]},
    {"prompt": TEXT + "sum", "max_tokens": 30, "temperature": 0.8, "n": 2},
    {"prompt": TEXT[:30], "max_tokens": 25, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"prompt": "42", "max_tokens": 1},
    {"prompt": TEXT + "sum of it", "max_tokens": 25, "logprobs": 0, "prompt_logprobs": 1},
    {"prompt": "jumps", "max_tokens": 33, "frequency_penalty": 0.7, "stop_token_ids": [3]},
    {"prompt": "the fox", "max_tokens": 28},
    {"prompt": "the fox", "max_tokens": 28},
]
KEYS = ("output_token_ids", "output_text", "finish_reason", "stop_reason", "status", "error")
LOGPROBS = ("output_logprobs", "prompt_token_logprobs")


def outputs(run_dir: Path) -> list[dict[str, Any]]:
    return pq.read_table(run_dir / "outputs.parquet").to_pylist()


def assert_equal_answers(run_dir: Path, expected: list[dict[str, Any]]) -> None:
    made = outputs(run_dir)
    assert [{key: row[key] for key in KEYS} for row in made] == [
        {key: row[key] for key in KEYS} for row in expected
    ]
    for row, other in zip(made, expected, strict=True):
        for key in LOGPROBS:
            if other.get(key) is not None:
                assert row[key][1:] == pytest.approx(other[key][1:], abs=1e-4)
        if other.get("output_top_logprobs") is not None:
            for mine, theirs in zip(
                row["output_top_logprobs"], other["output_top_logprobs"], strict=True
            ):
                assert [one["token_id"] for one in mine] == [one["token_id"] for one in theirs]


def drawn(run_dir: Path) -> int:
    return sum(read_steps(run_dir)["output_tokens"].to_pylist())


@pytest.fixture(scope="module")
def unbroken(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A plan, the outputs of a run of it without trouble, and the tokens it drew."""
    folder = tmp_path_factory.mktemp("unbroken")
    plan, _ = plan_job(folder, ROWS, checkpoint)
    execute(plan, folder / "run")
    return SimpleNamespace(
        plan=plan, outputs=outputs(folder / "run"), drawn=drawn(folder / "run"), folder=folder
    )


def break_after(patch: pytest.MonkeyPatch, steps: int, error: BaseException) -> None:
    real, left = torch_backend.TorchBackend.run, [steps]

    def run(backend, batch):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return real(backend, batch)

    patch.setattr(torch_backend.TorchBackend, "run", run)


@pytest.mark.parametrize(
    "error", [BackendError("planted"), KeyboardInterrupt()], ids=["engine", "interrupt"]
)
@pytest.mark.parametrize("steps", [[3], [9, 1, 12], [4, 4, 4, 4, 4, 4]])
def test_a_stopped_run_goes_on_where_it_was(
    error: BaseException,
    steps: list[int],
    unbroken: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    run_dir, lengths = tmp_path / "run", {}
    for count in steps:
        with monkeypatch.context() as patch:
            break_after(patch, count, error)
            with pytest.raises(type(error)):
                execute(unbroken.plan, run_dir, max_seqs=6)
        finished = set(read_answers(run_dir)["row"].to_pylist())
        for row in read_unfinished(run_dir).to_pylist():
            key = (row["row"], row["output_index"])
            assert len(row["token_ids"]) >= lengths.get(key, 1)
            lengths[key] = len(row["token_ids"])
    assert lengths
    assert finished
    execute(unbroken.plan, run_dir, chunk_size=16)
    assert_equal_answers(run_dir, unbroken.outputs)
    assert drawn(run_dir) == unbroken.drawn
    assert not (run_dir / UNFINISHED_FILE).exists()
    parts = [pq.read_table(path) for path in (run_dir / "parts").iterdir()]
    assert pa.concat_tables(parts).num_rows == len(unbroken.outputs)


def test_a_run_that_is_killed_loses_what_came_after_the_last_save(
    unbroken: SimpleNamespace, tmp_path: Path
):
    """What is on disk after some step is all that a killed machine leaves."""
    run_dir, copy = tmp_path / "run", tmp_path / "copy"

    def copy_at_step(advance: Any) -> None:
        if advance.output_tokens > 60 and not copy.exists():
            shutil.copytree(run_dir, copy)

    settings = ExecuteSettings(
        dtype="float32", flush_interval_s=1e9, unfinished_interval_s=0.0, max_seqs=6
    )
    events = SimpleNamespace(**{**vars(SILENT), "step": copy_at_step})
    execute_plan(unbroken.plan, run_dir, settings, events)
    assert read_unfinished(copy).num_rows > 0
    execute(unbroken.plan, copy)
    assert_equal_answers(copy, unbroken.outputs)
    assert drawn(copy) == unbroken.drawn


def test_an_interrupt_while_tokens_are_taken_leaves_whole_steps(
    unbroken: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Some tokens of the step are there, and nobody has looked yet whether they end an answer."""
    real, left = Generations._ended, [4]

    def ended(generations, request, end):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(generations, request, end)

    with monkeypatch.context() as patch:
        patch.setattr(Generations, "_ended", ended)
        with pytest.raises(KeyboardInterrupt):
            execute(unbroken.plan, tmp_path / "run")
    execute(unbroken.plan, tmp_path / "run")
    assert_equal_answers(tmp_path / "run", unbroken.outputs)


def test_the_time_limit_stops_a_run_that_then_goes_on(
    unbroken: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ticks = iter(range(1_000_000))
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
        with pytest.raises(TimeLimitError) as caught:
            execute_plan(
                unbroken.plan,
                tmp_path / "run",
                ExecuteSettings(dtype="float32", time_limit_s=20.0),
                SILENT,
                begin_s=0.0,
            )
    assert "continues" in caught.value.hint
    assert not (tmp_path / "run" / "outputs.parquet").exists()
    assert read_unfinished(tmp_path / "run").num_rows > 0
    execute(unbroken.plan, tmp_path / "run")
    assert_equal_answers(tmp_path / "run", unbroken.outputs)
    assert drawn(tmp_path / "run") == unbroken.drawn


def test_answers_of_one_window_wait_while_another_runs(
    unbroken: SimpleNamespace, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, _ = plan_job(tmp_path, ROWS, checkpoint, window=3)
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        break_after(patch, 20, BackendError("planted"))
        with pytest.raises(BackendError):
            execute(plan, run_dir)
    kept = read_unfinished(run_dir)
    assert set(kept["row"].to_pylist()) <= {0, 1, 2}
    # as if an earlier attempt had begun an answer of the last window
    row = next(r for r in unbroken.outputs[::-1] if r["max_tokens"] == 33)
    other = {"row": 7, "output_index": 0, "token_ids": row["output_token_ids"][:5]}
    table = pa.Table.from_pylist([*kept.to_pylist(), other], schema=kept.schema)
    pq.write_table(table, run_dir / UNFINISHED_FILE)
    with monkeypatch.context() as patch:
        break_after(patch, 2, BackendError("planted"))
        with pytest.raises(BackendError):
            execute(plan, run_dir)
    again = read_unfinished(run_dir)
    assert again.filter(pc.equal(again["row"], 7)).to_pylist()[0]["token_ids"] == other["token_ids"]
    execute(plan, run_dir)
    assert_equal_answers(run_dir, unbroken.outputs)


def test_what_does_not_fit_its_request_starts_over(
    unbroken: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        break_after(patch, 8, BackendError("planted"))
        with pytest.raises(BackendError):
            execute(unbroken.plan, run_dir)
    rows = read_unfinished(run_dir).to_pylist()
    for row in rows:
        row["logprobs"] = None  # two rows ask for them
    rows[0]["token_ids"] *= 30  # more than max_tokens
    table = pa.Table.from_pylist(rows, schema=read_unfinished(run_dir).schema)
    pq.write_table(table, run_dir / UNFINISHED_FILE)
    execute(unbroken.plan, run_dir)
    assert_equal_answers(run_dir, unbroken.outputs)


def test_a_damaged_file_is_named_and_can_go(
    unbroken: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        break_after(patch, 8, BackendError("planted"))
        with pytest.raises(BackendError):
            execute(unbroken.plan, run_dir)
    (run_dir / UNFINISHED_FILE).write_bytes(b"half of it")
    with pytest.raises(PlanError, match=r"unfinished\.parquet") as caught:
        execute(unbroken.plan, run_dir)
    assert "move the file away" in caught.value.hint
    (run_dir / UNFINISHED_FILE).unlink()
    execute(unbroken.plan, run_dir)
    assert_equal_answers(run_dir, unbroken.outputs)


def test_structured_answers_go_on_in_their_structure(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("llguidance")
    rows = [
        {"prompt": TEXT + "sum", "regex": "(yes|no), [0-9]{9} [a-f]{6}", "max_tokens": 40},
        {"prompt": TEXT + "dog", "grammar": 'root ::= "<" [a-c]{12} ">"', "temperature": 1.0},
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint, max_tokens=60)
    execute(plan, tmp_path / "unbroken")
    run_dir = tmp_path / "run"
    for steps in (5, 4):
        with monkeypatch.context() as patch:
            break_after(patch, steps, BackendError("planted"))
            with pytest.raises(BackendError):
                execute(plan, run_dir)
        assert read_unfinished(run_dir).num_rows == 2
    execute(plan, run_dir)
    assert_equal_answers(run_dir, outputs(tmp_path / "unbroken"))
    assert drawn(run_dir) == drawn(tmp_path / "unbroken")
