"""Parts of a step on lanes: a legal order, every wait that is needed, the sequential tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blendrun.engine import overlap, overlap_executor
from blendrun.engine.operators import Operator, StepOperators
from blendrun.engine.overlap_executor import OverlapExecutor, issue_order
from blendrun.engine.split_choice import Split
from tiny_devices import OnStandIn
from tiny_jobs import execute, plan_job
from tiny_lanes import CheckedLanes, InlineLanes, OneKind, RaceError

# neighbours in a step begin with pages that one of them fills in that very step
PREFIX = "the quick brown fox jumps over the lazy dog and then the dog"
ROWS = [
    {"prompt": f"{PREFIX}{' jumps' * (i % 3)} {i}", "max_tokens": 3 + i % 4} for i in range(9)
] + [
    {"prompt": f"question {i}: 12 + {i} =", "max_tokens": 6, "prompt_logprobs": 0} for i in range(4)
]


RESOURCES = st.sampled_from(["compute", "memory", "network"])


def nothing() -> None: ...


def layers(num_layers: int, num_parts: int, chunks: tuple[int, ...] = ()) -> list[Operator]:
    """As a decoder's; attention of the parts in `chunks` is bounded by compute."""
    step = StepOperators()
    for layer in range(num_layers):
        for part in range(num_parts):
            step.add("qkv", layer, part, "compute", nothing)
            step.add_attention(layer, part, "compute" if part in chunks else "memory", nothing)
            step.add("out", layer, part, "compute", nothing)
            step.add("mlp", layer, part, "compute", nothing)
    return list(step.all())


@pytest.mark.parametrize("chunks", [(), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_the_order_of_issue_is_a_legal_one(num_parts: int, chunks: tuple[int, ...]):
    operators = layers(4, num_parts, chunks)
    order = issue_order(operators)
    assert sorted(order) == list(range(len(operators)))
    place_of = {place: i for i, place in enumerate(order)}
    for place, operator in enumerate(operators):
        assert all(place_of[before] < place_of[place] for before in operator.after)


@pytest.mark.parametrize(("chunks", "beside"), [((), 3), ((1,), 4)])
def test_a_layer_of_the_other_part_is_queued_while_one_is_in_its_attention(
    chunks: tuple[int, ...], beside: int
):
    operators = layers(4, 2, chunks)
    order = issue_order(operators)
    for layer in (1, 2):
        attention, out = (
            next(
                i
                for i, place in enumerate(order)
                if (operators[place].name, operators[place].layer, operators[place].part)
                == (name, layer, 0)
            )
            for name in ("attention", "out")
        )
        between = [operators[place] for place in order[attention + 1 : out]]
        assert sum(o.part == 1 and o.resource == "compute" for o in between) == beside
        assert not any(o.part == 0 for o in between)


def test_waits_are_for_other_lanes_only():
    waits = []

    class Watching(InlineLanes):
        def mark(self, lane: str) -> Any:
            return lane

        def wait(self, lane: str, mark: Any) -> None:
            waits.append((lane, mark))

    OverlapExecutor(Watching()).run(layers(1, 2, chunks=(1,)))
    # attention 0 for its products, what follows it for it, attention 1 for attention 0
    assert sorted(waits) == [("compute", "memory"), ("compute", "memory"), ("memory", "compute")]


@given(st.lists(st.tuples(RESOURCES, st.sets(st.integers(1, 5), max_size=3)), max_size=20))
def test_every_operator_waits_for_all_that_it_comes_after(wanted: list[tuple[str, set[int]]]):
    lanes, seen = CheckedLanes(), {}

    def run(place: int, resource: str) -> None:
        # what this lane has counted, and what it knows of all others
        seen[place] = (lanes.count(resource), lanes.mark(resource))

    operators = [
        Operator(
            "any", 0, 0, resource, tuple(i - b for b in back if b <= i), partial(run, i, resource)
        )
        for i, (resource, back) in enumerate(wanted)
    ]
    OverlapExecutor(lanes).run(operators)
    assert len(seen) == len(operators)
    for place, operator in enumerate(operators):
        for before in operator.after:
            count, _ = seen[before]
            assert seen[place][1].get(operators[before].resource, 0) >= count


def test_an_operator_that_fails_comes_out_and_no_other_begins():
    step, ran = StepOperators(), []

    def fail() -> None:
        raise RuntimeError("out of memory")

    step.add("qkv", 0, 0, "compute", fail)
    step.add("out", 0, 0, "compute", lambda: ran.append("out"))
    lanes = CheckedLanes()
    with pytest.raises(RuntimeError, match="out of memory"):
        OverlapExecutor(lanes).run(step.all())
    assert not ran


def in_parts(lanes: InlineLanes) -> Callable[..., Any]:
    """A `ModelLoader`: every step that can be is divided."""

    def load(files: Any, settings: Any) -> Any:
        model = OnStandIn()(files, settings)
        return replace(model, compute=replace(model.compute, lanes=OneKind(lanes)))

    return load


@pytest.fixture(scope="module")
def plan(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = plan_job(tmp_path_factory.mktemp("job"), ROWS, checkpoint, ignore_eos=True)
    return path


@pytest.fixture(scope="module")
def expected(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    return answers(plan, tmp_path_factory.mktemp("sequential") / "run", OnStandIn())


def answers(plan: Path, run_dir: Path, load: Any, **settings: Any) -> pa.Table:
    wanted = {"page_size": 4, "chunk_size": 40, **settings}
    return pq.read_table(execute(plan, run_dir, load, **wanted).outputs)


def scores(outputs: pa.Table) -> list[float]:
    """Log-probabilities of all prompt tokens that have one."""
    rows = outputs["prompt_token_logprobs"].to_pylist()
    return [value for row in rows for value in row or () if value is not None]


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("chunk_size", [40, 512])
def test_tokens_in_parts_are_the_sequential_ones_and_no_lane_races(
    num_parts: int,
    chunk_size: int,
    plan: Path,
    expected: pa.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    choose = lambda *_: (lambda _shape: Split(num_parts), "a test")  # noqa: E731
    monkeypatch.setattr(overlap, "choose_split", choose)
    lanes = CheckedLanes()
    found = answers(plan, tmp_path / "run", in_parts(lanes), overlap="on", chunk_size=chunk_size)
    assert found["output_token_ids"].equals(expected["output_token_ids"])
    assert len(scores(expected)) > 20
    np.testing.assert_allclose(scores(found), scores(expected), atol=1e-4)
    assert {"compute", "memory"} <= set(lanes.ran)
    assert lanes.num_checked > 100


class Deaf(CheckedLanes):
    """One lane waits for no other while a step runs."""

    def __init__(self, lane: str) -> None:
        super().__init__()
        self._lane, self._runs = lane, False

    def begin(self) -> None:
        super().begin()
        self._runs = True

    def wait(self, lane: str, mark: Any) -> None:
        if lane != self._lane or not self._runs:
            super().wait(lane, mark)

    def end(self) -> None:
        self._runs = False
        super().end()


@pytest.mark.parametrize("lane", ["compute", "memory"])
def test_a_lane_that_does_not_wait_is_a_race(lane: str, plan: Path, tmp_path: Path):
    with pytest.raises(RaceError, match=f"on {lane} does not wait for"):
        answers(plan, tmp_path / "run", in_parts(Deaf(lane)), overlap="on")


def test_without_the_wait_for_the_part_before_keys_are_read_too_early(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def add_attention(self: Any, layer: int, part: int, *more: Any) -> None:
        self.add("attention", layer, part, *more)

    monkeypatch.setattr(StepOperators, "add_attention", add_attention)
    with pytest.raises(RaceError, match="does not wait for"):
        answers(plan, tmp_path / "run", in_parts(CheckedLanes()), overlap="on")


def test_memory_of_another_lane_that_is_not_kept_is_a_race(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    right = overlap_executor.OverlapExecutor.run

    def careless(self: Any, operators: Any) -> None:
        right(self, [replace(operator, reads=tuple) for operator in operators])

    monkeypatch.setattr(overlap_executor.OverlapExecutor, "run", careless)
    with pytest.raises(RaceError, match="given away"):
        answers(plan, tmp_path / "run", in_parts(CheckedLanes()), overlap="on")


def test_what_watches_lanes_sees_a_write_that_nobody_waits_for():
    lanes, x = CheckedLanes(), torch.zeros(4)
    lanes.begin()
    lanes.run("compute", lambda: x.add_(1))
    mark = lanes.mark("compute")
    with pytest.raises(RaceError):
        lanes.run("memory", lambda: x.sum())
    lanes.wait("memory", mark)
    lanes.run("memory", lambda: x.sum())
    lanes.end()
