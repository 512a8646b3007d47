"""How long something takes in a step, once or in all layers, on a CPU or a device behind it."""

import time
from typing import Any, Protocol

import torch


class LayerClock(Protocol):
    def begin(self) -> None: ...

    def end(self) -> None: ...

    def seconds(self) -> float:
        """Between all pairs of begin and end; waits for the device to be through."""


class CpuClock:
    def __init__(self, seconds: float = 0.0) -> None:
        """`seconds`: what has been measured already."""
        self._seconds = seconds

    def begin(self) -> None:
        self._begin = time.perf_counter()

    def end(self) -> None:
        self._seconds += time.perf_counter() - self._begin

    def seconds(self) -> float:
        return self._seconds


class CudaClock:
    """Marks in the stream of work; read once the device has passed them."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def begin(self) -> None:
        self._mark()

    def end(self) -> None:
        self._mark()

    def seconds(self) -> float:
        if not self._marks:
            return 0.0
        for end in self._marks[1::2]:  # on several streams where a step has parts
            end.synchronize()
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1e3  # it gives ms

    def _mark(self) -> None:
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        self._marks.append(mark)


def layer_clock(device: torch.device) -> LayerClock:
    return CudaClock() if device.type == "cuda" else CpuClock()
