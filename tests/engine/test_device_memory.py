"""KV pages get what the largest step leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blendrun.engine.decoder import Decoder
from blendrun.engine.device_memory import KV_FRAC, kv_bytes
from blendrun.engine.layer_clock import CudaClock
from blendrun.engine.weights import load_weights
from tiny_models import tiny_config


class FakeMemory:
    def __init__(self, free: int, peak: int) -> None:
        self._free, self._peak = free, peak
        self.ran = False

    def free_bytes(self) -> int:
        return self._free

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        self.ran = True
        return self._peak


@pytest.mark.parametrize(("peak", "left"), [(400, int(600 * KV_FRAC)), (1200, 0)])
def test_pages_get_a_part_of_what_the_largest_step_leaves(checkpoint: Path, peak: int, left: int):
    config = tiny_config()
    weights = load_weights(checkpoint, config, torch.float32)
    memory = FakeMemory(1000, peak)
    assert kv_bytes(Decoder(config, weights), memory, chunk_size=24, max_seqs=300) == left
    assert memory.ran


def test_marks_of_a_stream_add_up_pair_by_pair(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 5.0, 100.0, 107.0])  # ms, when the device passes each mark

    class Mark:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(times)

        def synchronize(self) -> None: ...

        def elapsed_time(self, later: "Mark") -> float:
            return later.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Mark)
    clock = CudaClock()
    assert clock.seconds() == 0.0
    for _ in range(2):
        clock.begin()
        clock.end()
    assert clock.seconds() == pytest.approx(0.012)
