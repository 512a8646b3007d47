"""Which process groups ranks join: NCCL for what is on GPUs, Gloo for all that is told."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from blendrun.cost.tensor_shards import Shard
from blendrun.engine.tensor_group import Message
from blendrun.launch.rendezvous import Meeting, join, open_store


class FakeNccl:
    """Notes who joins, and what is added up; on one rank it is all that there is."""

    made: list["FakeNccl"]

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        del store
        self._place, self.options = (rank, size), options
        self.summed: list[torch.Tensor] = []
        self.made.append(self)

    class Options(SimpleNamespace):
        pass

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        self.summed += tensors
        return SimpleNamespace(wait=lambda: None)


def both_join(device: str) -> tuple[list[Any], Any]:
    """Two ranks, on the GPUs 0 and 1 or both on the CPU, and the store that they need."""
    store = open_store()
    meeting = Meeting(store.port, 60.0, in_order=False)

    def one(rank: int) -> Any:
        place = torch.device(device, rank) if device == "cuda" else torch.device(device)
        return join(Shard(rank, 2), meeting, place)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, range(2))), store


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> list[FakeNccl]:
    made: list[FakeNccl] = []
    monkeypatch.setattr(FakeNccl, "made", made, raising=False)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    return made


def test_between_gpus_tensors_go_by_nccl_and_words_by_gloo(nccl: list[FakeNccl]):
    (first, second), _store = both_join("cuda")
    assert sorted((one.rank(), one.size()) for one in nccl) == [(0, 2), (1, 2)]
    assert {one.options._timeout.total_seconds() for one in nccl} == {60.0}
    x = torch.ones(3)
    assert first.sum(x) is x
    (summed,) = (one.summed for one in nccl if one.rank() == 0)
    assert summed == [x]
    with ThreadPoolExecutor(2) as threads:  # NCCL could not have what is on the CPU
        heard = threads.submit(second.hear)
        first.tell(Message(7, [1, 2], np.arange(5, dtype=np.int32)))
        message = heard.result()
        assert (message.kind, message.numbers[:2]) == (7, [1, 2])
        assert message.payload.tolist() == list(range(5))
        least = threads.submit(second.least, 3)
        assert first.least(5) == 3
        assert least.result() == 3


def test_between_cpus_all_goes_by_gloo(nccl: list[FakeNccl]):
    (first, second), _store = both_join("cpu")
    assert not nccl
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(second.sum, torch.ones(3))
        assert first.sum(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
        assert other.result().tolist() == [2.0, 2.0, 2.0]
