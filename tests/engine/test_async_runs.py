"""Whole runs whose steps are launched ahead: the answers of the sequential schedule."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import read_manifest
from blendrun.data.results import read_steps
from blendrun.data.unfinished import read_unfinished
from blendrun.engine import deadline, overlap
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.split_choice import Split
from blendrun.engine.steps import Steps
from blendrun.engine.tokens_ahead import TokensAhead
from blendrun.engine.torch_backend import TorchBackend
from blendrun.errors import BackendError, TimeLimitError
from engine.test_overlap_executor import in_parts
from tiny_devices import OnStandIn, in_plain_torch
from tiny_graphs import WithGraphs
from tiny_jobs import SILENT, execute, plan_job
from tiny_lanes import CheckedLanes
from tiny_models import make_checkpoint

POLICIES = ("blend", "dfs", "random", "arrival", "blendserve")
TEXT = "question: what is the sum of 12 and 30? answer: the "
# ends of all kinds; whole beginnings are shared, and some prompts are equal
FREE: list[dict[str, Any]] = [
    *({"prompt": f"{TEXT}{i % 3} {i}", "max_tokens": 4 + 3 * i} for i in range(6)),
    *({"prompt": TEXT + word, "max_tokens": 1} for word in ("dog", "fox")),
    {"prompt": TEXT + "sum", "max_tokens": 30, "temperature": 0.9, "n": 3},
    {"prompt": "the fox", "max_tokens": 25, "temperature": 1.0, "top_k": 20, "logprobs": 2},
    {"prompt": TEXT + "dog", "max_tokens": 30, "stop": ["a", "o"]},
    {"prompt": "jumps", "max_tokens": 33, "stop_token_ids": [*range(30, 60)]},
    {"prompt": "the quick brown", "max_tokens": 14, "ignore_eos": True, "logit_bias": {"42": 3.0}},
    {"prompt": TEXT + "sum of it", "max_tokens": 12, "logprobs": 0, "prompt_logprobs": 1},
    {"prompt": "the fox", "max_tokens": 20},
    {"prompt": "the fox", "max_tokens": 20},
]
# what asks for its tokens before it goes on
BOUND: list[dict[str, Any]] = [
    {"prompt": TEXT, "max_tokens": 15, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"prompt": TEXT + "fox", "max_tokens": 12, "regex": r"(yes|no), [0-9]{2}"},
    {"prompt": "the", "max_tokens": 18, "frequency_penalty": 0.7, "temperature": 0.8},
]
KEYS = ("output_token_ids", "output_text", "finish_reason", "stop_reason", "status")
SHORT = {"prior_output_len": 2}  # what the plan believes, so that too many come in
PREEMPTED = {"page_size": 4, "kv_memory": 28 * 4 * 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that ends about one answer in twelve with each token."""
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder, eos_token_id=[2, *range(100, 125)])


@pytest.fixture(scope="module")
def jobs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Plans of both kinds of rows by policy, and of the first kind alone; their answers."""
    folder = tmp_path_factory.mktemp("jobs")
    plans = {
        policy: plan_job(folder / policy, [*FREE, *BOUND], model, policy=policy, **SHORT)[0]
        for policy in POLICIES
    }
    plans["free"] = plan_job(folder / "free", FREE, model, **SHORT)[0]
    found = {name: run(plans[name], folder / name / "run") for name in ("blend", "free")}
    return {"plans": plans, "answers": found}


def run(plan: Path, run_dir: Path, load: Any = None, **settings: Any) -> list[dict[str, Any]]:
    wanted = {"page_size": 4, "chunk_size": 32, **settings}
    return answers_of(execute(plan, run_dir, load, **wanted).outputs)


def answers_of(outputs: Path) -> list[dict[str, Any]]:
    """What does not depend on how it was rounded."""
    found = []
    for row in pq.read_table(outputs).to_pylist():
        tops = [[one["token_id"] for one in at] for at in row["output_top_logprobs"] or ()]
        logprobs = (row["output_logprobs"], row["prompt_token_logprobs"])
        lengths = [None if values is None else len(values) for values in logprobs]
        found.append({key: row[key] for key in KEYS} | {"tops": tops, "lengths": lengths})
    return found


def total(run_dir: Path, name: str) -> int:
    return sum(read_steps(run_dir)[name].to_pylist())


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_those_of_the_sequential_schedule(
    policy: str, jobs: dict[str, Any], tmp_path: Path
):
    found = run(jobs["plans"][policy], tmp_path / "run", OnStandIn(), schedule="async")
    assert found == jobs["answers"]["blend"]
    assert {row["finish_reason"] for row in found} == {"stop", "length"}
    assert read_manifest(tmp_path / "run").environment["schedule"] == "async"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_seqs": 3},
        {"chunk_size": 3, "max_seqs": 1},
        {"prefix_cache": False},
        {"shared_prefix_attention": False, "chunk_size": 9},
        {"deterministic": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["free", "blend"])
def test_answers_do_not_depend_on_other_settings(
    name: str, settings: dict[str, Any], jobs: dict[str, Any], tmp_path: Path
):
    found = run(jobs["plans"][name], tmp_path / "run", schedule="async", **settings)
    assert found == jobs["answers"][name]


@pytest.mark.parametrize("name", ["free", "blend"])
def test_preemption_does_not_change_an_answer(name: str, jobs: dict[str, Any], tmp_path: Path):
    found = run(jobs["plans"][name], tmp_path / "run", schedule="async", **PREEMPTED)
    assert found == jobs["answers"][name]
    assert total(tmp_path / "run", "preemptions") > 0


def divided(monkeypatch: pytest.MonkeyPatch) -> Any:
    choose = lambda *_: (lambda _shape: Split(2), "a test")  # noqa: E731
    monkeypatch.setattr(overlap, "choose_split", choose)
    return in_parts(CheckedLanes())


@pytest.mark.parametrize(
    ("load", "settings"),
    [
        (lambda _: in_plain_torch, {}),
        (lambda _: WithGraphs(), {"shared_prefix_attention": False}),
        (lambda _: OnStandIn(), {"pod": True, "chunk_size": 8}),
        (divided, {"overlap": "on"}),
    ],
    ids=["plain torch", "graphs", "pod", "parts"],
)
def test_every_way_to_compute_takes_tokens_from_the_device(
    load: Callable[[pytest.MonkeyPatch], Any],
    settings: dict[str, Any],
    jobs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    loader = load(monkeypatch)
    found = run(jobs["plans"]["free"], tmp_path / "run", loader, schedule="async", **settings)
    assert found == jobs["answers"]["free"]
    if isinstance(loader, WithGraphs):
        assert loader.num_replays > 0


def test_each_early_end_costs_one_token(jobs: dict[str, Any], tmp_path: Path):
    for schedule in ("sequential", "async"):
        run(jobs["plans"]["free"], tmp_path / schedule, schedule=schedule)
    rows = pq.read_table(tmp_path / "async" / "outputs.parquet").to_pylist()
    # an answer of the two equal prompts is computed once
    early = {
        (row["prompt"], tuple(row["output_token_ids"]))
        for row in rows
        if row["finish_reason"] == "stop" and row["num_output_tokens"] < row["max_tokens"]
    }
    assert len(early) > 4
    more = total(tmp_path / "async", "decode_tokens") - total(
        tmp_path / "sequential", "decode_tokens"
    )
    assert more == len(early)
    for name in ("output_tokens", "finished", "prefill_tokens"):
        assert total(tmp_path / "async", name) == total(tmp_path / "sequential", name)


@pytest.mark.parametrize(
    "error", [BackendError("planted"), KeyboardInterrupt()], ids=["engine", "interrupt"]
)
def test_a_stopped_run_goes_on_where_it_was(
    error: BaseException, jobs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    right, plan = TorchBackend.launch, jobs["plans"]["blend"]
    for count in (6, 4):
        left = [count]

        def launch(backend: Any, batch: Any, before: Any = None, left: Any = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise error
            return right(backend, batch, before)

        with monkeypatch.context() as patch:
            patch.setattr(TorchBackend, "launch", launch)
            with pytest.raises(type(error)):
                run(plan, tmp_path / "run", schedule="async", max_seqs=6)
        assert read_unfinished(tmp_path / "run").num_rows > 0
    assert run(plan, tmp_path / "run", schedule="async") == jobs["answers"]["blend"]


def test_a_time_limit_loses_no_token(
    jobs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, run_dir, ticks = jobs["plans"]["free"], tmp_path / "run", iter(range(1_000_000))
    settings = ExecuteSettings(
        dtype="float32", time_limit_s=14.0, schedule="async", page_size=4, chunk_size=32
    )
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
        with pytest.raises(TimeLimitError):
            execute_plan(plan, run_dir, settings, SILENT, begin_s=0.0)
    assert read_unfinished(run_dir).num_rows > 0
    assert run(plan, run_dir, schedule="async") == jobs["answers"]["free"]
    run(plan, tmp_path / "unbroken")
    assert total(run_dir, "output_tokens") == total(tmp_path / "unbroken", "output_tokens")


def _tokens_of_the_step_before_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    right, earlier = TokensAhead.of, []

    def wrong(decodes: Any, drawn: Any, drew: Any) -> Any:
        earlier.append(drawn)
        old = earlier[-2] if len(earlier) > 1 and len(earlier[-2]) >= len(drawn) else drawn
        return right(decodes, old[: len(drawn)], drew)

    monkeypatch.setattr(TokensAhead, "of", wrong)


def _neighbours_token(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TokensAhead.of

    def wrong(decodes: Any, drawn: Any, drew: Any) -> Any:
        return right(decodes, drawn.roll(1), drew)

    monkeypatch.setattr(TokensAhead, "of", wrong)


def _limits_are_noticed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_steps: Any, batch: Any) -> Any:
        return batch.needs_logits & False

    monkeypatch.setattr(Steps, "_reaches_limit", wrong)


@pytest.mark.parametrize(
    "plant",
    [
        _tokens_of_the_step_before_the_last,
        _neighbours_token,
        _limits_are_noticed_late,
    ],
    ids=lambda plant: plant.__name__.strip("_").replace("_", " "),
)
def test_a_planted_error_changes_answers_or_counts(
    plant: Callable[[pytest.MonkeyPatch], None],
    jobs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    plan, names = jobs["plans"]["free"], ("output_tokens", "decode_tokens")
    run(plan, tmp_path / "right", schedule="async")
    expected = [total(tmp_path / "right", name) for name in names]
    plant(monkeypatch)
    found = run(plan, tmp_path / "run", schedule="async")
    counts = [total(tmp_path / "run", name) for name in names]
    assert (found, counts) != (jobs["answers"]["free"], expected)
