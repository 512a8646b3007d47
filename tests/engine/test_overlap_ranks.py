"""Steps in parts on tensor-parallel ranks: sums beside products, on a lane of their own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from blendrun.data.manifest import read_manifest
from blendrun.engine import overlap
from blendrun.engine.decoder import Decoder
from blendrun.engine.executors import SequentialExecutor
from blendrun.engine.overlap_executor import OverlapExecutor
from blendrun.engine.split_choice import Split
from blendrun.engine.step_part import StepPart
from blendrun.engine.tensor_group import Ranks
from blendrun.engine.weights import load_weights
from engine.test_decoder import dense_attend, positions_of, random_sequences
from engine.test_device_path import answers
from engine.test_overlap_executor import Deaf
from tiny_devices import OnStandIn
from tiny_groups import load_on_threads, on_ranks
from tiny_lanes import CheckedLanes, OneKind, RaceError
from tiny_models import tiny_config

LENGTHS = ([9, 1, 17], [4, 6])  # sequences of two parts


@pytest.fixture(autouse=True)
def seen_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo writes behind the back of what watches lanes: a write that it sees comes before."""
    right = Ranks.sum

    def touching(self: Ranks, x: torch.Tensor) -> torch.Tensor:
        return right(self, x.mul_(1))

    monkeypatch.setattr(Ranks, "sum", touching)


@pytest.mark.parametrize(("tp", "num_parts"), [(2, 2), (2, 3), (4, 2)])
def test_tokens_are_those_of_one_rank_and_no_lane_races(
    tp: int,
    num_parts: int,
    job_of_ranks: tuple[Path, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    plan, expected = job_of_ranks
    choose = lambda *_: (lambda _shape: Split(num_parts, 0.25), "a test")  # noqa: E731
    monkeypatch.setattr(overlap, "choose_split", choose)
    made: list[CheckedLanes] = []

    def compute_of(settings: Any) -> Any:
        made.append(CheckedLanes())
        return replace(OnStandIn().compute(settings), lanes=OneKind(made[-1]))

    load = partial(load_on_threads, compute_of=compute_of)
    assert answers(plan, tmp_path / "run", load, tp=tp, overlap="on") == expected
    assert read_manifest(tmp_path / "run").environment["overlap"] == "on"
    assert len(made) == tp
    for lanes in made:
        assert lanes.ran == made[0].ran  # so all ranks meet in the same sum
        assert lanes.ran.count("network") > 100
        assert lanes.num_checked > 100


def in_parts(folder: Path, make: Callable[[], CheckedLanes], in_order: bool = False) -> list[Any]:
    """Hidden states of two parts, or the race that each of two ranks found."""
    config = tiny_config()

    @torch.inference_mode()
    def on_rank(group: Any) -> Any:
        weights = load_weights(folder, config, torch.float32, shard=group.shard)
        decoder = Decoder(config, weights, group=group)
        try:
            return decoder.forward_parts(parts(), OverlapExecutor(make()))
        except RaceError as race:
            return race

    return on_ranks(2, on_rank, in_order)


def parts() -> list[StepPart]:
    tokens = [torch.cat(random_sequences(lengths, 300)) for lengths in LENGTHS]
    return [
        StepPart(ids, positions_of(lengths), dense_attend(lengths))
        for ids, lengths in zip(tokens, LENGTHS, strict=True)
    ]


@pytest.mark.parametrize("in_order", [False, True])
def test_sums_wait_for_products_and_products_for_sums(checkpoint: Path, in_order: bool):
    whole = Decoder(tiny_config(), load_weights(checkpoint, tiny_config(), torch.float32))
    with torch.inference_mode():
        alone = [whole.forward_parts([part], SequentialExecutor()) for part in parts()]
    for found in in_parts(checkpoint, CheckedLanes, in_order):
        torch.testing.assert_close(found, torch.cat(alone), rtol=0, atol=1e-4)


@pytest.mark.parametrize("lane", ["network", "compute", "memory"])
def test_a_lane_that_does_not_wait_is_a_race_on_all_ranks(lane: str, checkpoint: Path):
    for race in in_parts(checkpoint, lambda: Deaf(lane)):
        assert isinstance(race, RaceError)
        assert f"on {lane} does not wait for" in str(race)


def test_a_sum_whose_memory_is_not_kept_is_a_race(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    right = StepPart.made

    def careless(self: StepPart) -> tuple[torch.Tensor, ...]:
        return tuple(x for x in right(self) if x is not self.branch)

    monkeypatch.setattr(StepPart, "made", careless)
    for race in in_parts(checkpoint, CheckedLanes):
        assert isinstance(race, RaceError)
        assert "on network: memory of compute may be given away" in str(race)
