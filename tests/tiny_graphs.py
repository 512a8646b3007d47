"""Graphs without a device: calls are noted once, and made again without a line of the engine.

What is captured reads and writes tensors only: a replay makes the same calls of torch and of the
FlashInfer stand-in, on the same tensors. A number that went to the host, or an array that came from
it, is as it was when the graph was captured; the host may not wait for a number at all.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import flashinfer_stand_in
from blendrun.engine.compute import Compute
from blendrun.engine.graphs import Capture
from blendrun.engine.settings import ExecuteSettings
from tiny_devices import OnStandIn

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]
_WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")
_capturing: list["_Recorder"] = []


class CaptureError(Exception):
    pass


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ in _WAITS:
            raise CaptureError(f"the host waits for the device: {func}")
        return self.call(func, args, kwargs or {})

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        out = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, out))
        return out


def refusing_waits() -> TorchDispatchMode:
    """Fails where the host waits for a number of a tensor."""
    return _Recorder()


class RecordedGraph:
    def __init__(self, calls: list[Call], made: Tensor) -> None:
        self._calls, self.made = calls, made
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        for function, args, kwargs, out in self._calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and not _same_memory(old, new):
                    old.copy_(new)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class RecordingMaker:
    """A `GraphMaker`. What work computes while it is captured is spoilt: on a device it is none."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []

    def __call__(self, work: Callable[[], Tensor]) -> RecordedGraph:
        recorder = _Recorder()
        _capturing.append(recorder)
        try:
            with recorder:
                made = work()
        finally:
            _capturing.pop()
        made.fill_(torch.nan)
        self.graphs.append(RecordedGraph(recorder.calls, made))
        return self.graphs[-1]


def recordable(library: Any = flashinfer_stand_in) -> Any:
    """The stand-in, each call of which is one call of a graph."""

    def whole(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _capturing:
                return function(*args, **kwargs)
            with _disable_current_modes():
                return _capturing[-1].call(function, args, kwargs)

        return call

    made: dict[str, Any] = {}
    for name in flashinfer_stand_in.__all__:
        found = getattr(library, name)
        if hasattr(found, "run"):
            found = type(name, (found,), {"run": whole(found.run)})
        elif name != "ContractError":
            found = whole(found)
        made[name] = found
    return SimpleNamespace(**made)


class WithGraphs(OnStandIn):
    """A `ModelLoader`: the stand-in, with decode-only steps as recorded graphs."""

    def __init__(self, maker: Any = None) -> None:
        super().__init__(recordable())
        self.maker = maker or RecordingMaker()

    def compute(self, settings: ExecuteSettings) -> Compute:
        compute = super().compute(settings)
        return replace(compute, capture=Capture(compute.attention, self.maker))

    @property
    def num_replays(self) -> int:
        return sum(graph.num_replays for graph in self.maker.graphs)
