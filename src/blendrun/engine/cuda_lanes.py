"""Lanes of a GPU: streams, each with processors (SMs) of its own where FlashInfer can divide them.

A green context of the driver has some of a device's SMs, and streams of its own. Those for decode
attention are then not taken by products, and the other way round; network gets a plain stream.
Has never run on a device.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from blendrun.engine.operators import Resource

_ANY_FRAC = 0.25


class CudaLanes:
    """See `engine.lanes.Lanes`."""

    def __init__(self, streams: Mapping[Resource, torch.cuda.Stream]) -> None:
        self._streams = dict(streams)

    def begin(self) -> None:
        caller = torch.cuda.current_stream()
        for stream in self._streams.values():
            stream.wait_stream(caller)

    def run(self, lane: Resource, work: Callable[[], None], foreign: Iterable[Tensor] = ()) -> None:
        stream = self._streams[lane]
        for tensor in foreign:
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            work()

    def mark(self, lane: Resource) -> torch.cuda.Event:
        event: torch.cuda.Event = self._streams[lane].record_event()
        return event

    def wait(self, lane: Resource, mark: torch.cuda.Event) -> None:
        self._streams[lane].wait_event(mark)

    def end(self) -> None:
        caller = torch.cuda.current_stream()
        for stream in self._streams.values():
            caller.wait_stream(stream)


class CudaLaneMaker:
    """Lanes by the share of SMs that decode attention has for itself; made once, then kept."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lanes: dict[float, CudaLanes] = {}
        self.why_whole = ""  # why SMs are not divided, where that was asked for

    def __call__(self, memory_frac: float) -> CudaLanes:
        """`memory_frac` 0: all lanes have all SMs."""
        found = self._lanes.get(memory_frac)
        if found is None:
            found = self._lanes[memory_frac] = CudaLanes(self._streams(memory_frac))
        return found

    def divides(self) -> bool:
        """Whether green contexts can be had here; makes some to find out."""
        self(_ANY_FRAC)
        return not self.why_whole

    def _streams(self, memory_frac: float) -> dict[Resource, torch.cuda.Stream]:
        network = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        if memory_frac > 0 and not self.why_whole:
            try:
                memory, compute = _divided(self._device, memory_frac)
            # cuda-python is missing, or the driver is too old for green contexts
            except (ImportError, AttributeError, RuntimeError) as error:
                self.why_whole = f"all lanes have all SMs: {error}".splitlines()[0]
            else:
                return {"memory": memory, "compute": compute, "network": network}
        memory = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        compute = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return {"memory": memory, "compute": compute, "network": network}


def _divided(device: torch.device, memory_frac: float) -> tuple[Any, Any]:
    """Streams on about that share of the SMs, and on the rest."""
    green_ctx = import_module("flashinfer.green_ctx")
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = max(int(processors * memory_frac), 1)  # rounded up to what the device can divide
    streams, _ = green_ctx.split_device_green_ctx_by_sm_count(device, [wanted])
    return streams[0], streams[1]
