"""Whoever runs the operators, and in which legal order: a job's tokens are the same."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.engine import loaded_model
from blendrun.engine.executors import Executor, SequentialExecutor
from blendrun.engine.operators import Operator, StepOperators
from tiny_executors import LastPartFirst, PartsDecoder, RandomOrder, ThreadPerResource
from tiny_jobs import execute, plan_job

# neighbours in a step begin with pages that one of them fills in that very step
PREFIX = "the quick brown fox jumps over the lazy dog and then the dog"
ROWS = [
    {"prompt": f"{PREFIX}{' jumps' * (i % 3)} {i}", "max_tokens": 3 + i % 4} for i in range(9)
] + [{"prompt": f"question {i}: 12 + {i} =", "max_tokens": 6} for i in range(4)]


@pytest.fixture(scope="module")
def plan(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = plan_job(tmp_path_factory.mktemp("job"), ROWS, checkpoint, ignore_eos=True)
    return path


def answers(plan: Path, run_dir: Path, **settings: Any) -> list[list[int] | None]:
    result = execute(plan, run_dir, page_size=4, **settings)
    return pq.read_table(result.outputs)["output_token_ids"].to_pylist()


@pytest.fixture(scope="module")
def expected(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int] | None]:
    return answers(plan, tmp_path_factory.mktemp("sequential") / "run")


def in_parts(monkeypatch: pytest.MonkeyPatch, executor: Executor) -> None:
    parts = partial(PartsDecoder, executor=executor)
    monkeypatch.setattr(loaded_model, "Decoder", parts)


@pytest.mark.parametrize(
    "executor",
    [SequentialExecutor(), *map(RandomOrder, range(3)), ThreadPerResource()],
    ids=lambda executor: type(executor).__name__,
)
@pytest.mark.parametrize("chunk_size", [512, 16])
def test_nano_batches_in_any_legal_order_give_equal_tokens(
    executor: Executor,
    chunk_size: int,
    plan: Path,
    expected: list[list[int] | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    in_parts(monkeypatch, executor)
    assert answers(plan, tmp_path / "run", chunk_size=chunk_size) == expected
    if isinstance(executor, RandomOrder):
        assert executor.num_turns > 50


def test_without_the_order_between_parts_tokens_differ(
    plan: Path, expected: list[list[int] | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    in_parts(monkeypatch, LastPartFirst())
    assert answers(plan, tmp_path / "run") != expected


def test_attention_waits_for_what_the_parts_before_it_write_in_its_layer():
    step, ran = StepOperators(), []
    for layer in range(2):
        for part in range(2):
            step.add("qkv", layer, part, "compute", lambda: ran.append("qkv"))
            step.add_attention(layer, part, "memory", lambda: ran.append("attention"))
    operators = step.all()
    assert [o.after for o in operators] == [(), (0,), (), (2, 1), (1,), (4,), (3,), (6, 5)]
    assert all(place < i for i, o in enumerate(operators) for place in o.after)
    SequentialExecutor().run(operators)
    assert ran == ["qkv", "attention"] * 4


def test_operators_tell_the_resource_that_bounds_them(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    class Watching(SequentialExecutor):
        def run(self, operators: Sequence[Operator]) -> None:
            seen.extend(operators)
            super().run(operators)

    in_parts(monkeypatch, Watching())
    answers(plan, tmp_path / "run")
    assert {o.resource for o in seen if o.name == "attention"} == {"memory"}
    assert {o.resource for o in seen if o.name != "attention"} == {"compute"}
    assert {o.part for o in seen} == {0, 1, 2}
