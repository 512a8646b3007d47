"""Lanes without a device: work runs at once, and is checked against what streams could make of it.

On a device a lane may run its work any time later. What one lane writes and another one reads or
writes must therefore be ordered by marks and waits, and memory must not go back to the lane that
made it while another one has it. `CheckedLanes` looks at every call of torch: which memory it
reads, which it writes, on which lane, and what that lane knows of the others (vector clocks).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CALLER, LANES = "caller", ("compute", "memory", "network")


class RaceError(Exception):
    pass


class InlineLanes:
    """Runs work at once, and notes on which lane."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def begin(self) -> None: ...

    def run(self, lane: str, work: Callable[[], None], foreign: Iterable[Tensor] = ()) -> None:
        del foreign
        self.ran.append(lane)
        work()

    def mark(self, lane: str) -> Any:
        return lane

    def wait(self, lane: str, mark: Any) -> None: ...

    def end(self) -> None: ...


class OneKind:
    """A `LaneMaker`: the same lanes, whatever share of the SMs is asked for."""

    def __init__(self, lanes: InlineLanes) -> None:
        self._lanes = lanes

    def __call__(self, memory_frac: float) -> InlineLanes:
        del memory_frac
        return self._lanes

    def divides(self) -> bool:
        return True


class CheckedLanes(InlineLanes):
    """Raises RaceError where lanes that run later could compute something else."""

    def __init__(self) -> None:
        super().__init__()
        self.num_checked = 0  # accesses to what another lane has touched
        self._clock: dict[str, dict[str, int]] = {
            lane: defaultdict(int) for lane in (CALLER, *LANES)
        }
        self._forget()

    def _forget(self) -> None:
        # by address, when each lane last touched which bytes, and whether it wrote them
        self._touched: dict[int, dict[tuple[int, int, str, bool], int]] = defaultdict(dict)
        self._home: dict[int, str] = {}  # by address of memory, the lane that made it
        self._kept: set[tuple[int, str]] = set()
        self._alive: list[Tensor] = []  # so that no address comes twice

    def begin(self) -> None:
        self._clock[CALLER][CALLER] += 1
        for lane in LANES:
            self.wait(lane, self.mark(CALLER))

    def run(self, lane: str, work: Callable[[], None], foreign: Iterable[Tensor] = ()) -> None:
        self._clock[lane][lane] += 1
        self._kept |= {(tensor.untyped_storage().data_ptr(), lane) for tensor in foreign}
        with _Watch(self, lane):
            super().run(lane, work)

    def count(self, lane: str) -> int:
        """Pieces of work that the lane has got."""
        return self._clock[lane][lane]

    def mark(self, lane: str) -> Any:
        return dict(self._clock[lane])

    def wait(self, lane: str, mark: Any) -> None:
        known = self._clock[lane]
        for other, count in mark.items():
            known[other] = max(known[other], count)

    def end(self) -> None:
        for lane in LANES:
            self.wait(CALLER, self.mark(lane))
        self._forget()

    def touch(self, lane: str, tensor: Tensor, what: str, writes: bool, is_new: bool) -> None:
        if not tensor.numel():
            return
        self._alive.append(tensor)
        address = tensor.untyped_storage().data_ptr()
        home = self._home.setdefault(address, lane if is_new else CALLER)
        if home not in (CALLER, lane) and (address, lane) not in self._kept:
            raise RaceError(f"{what} on {lane}: memory of {home} may be given away meanwhile")
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.storage_offset() * tensor.itemsize
        end = begin + extent * tensor.itemsize
        for (low, high, other, wrote), time in self._touched[address].items():
            if other == lane or high <= begin or end <= low or not (wrote or writes):
                continue
            self.num_checked += 1
            if self._clock[lane][other] < time:
                raise RaceError(f"{what} on {lane} does not wait for {other}")
        self._touched[address][begin, end, lane, writes] = self._clock[lane][lane]


class _Watch(TorchDispatchMode):
    def __init__(self, lanes: CheckedLanes, lane: str) -> None:
        super().__init__()
        self._lanes, self._lane = lanes, lane

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        schema = func._schema.arguments
        given = list(zip(schema, args, strict=False))
        given += [(a, kwargs[a.name]) for a in schema if a.name in kwargs]
        known = set()
        for argument, value in given:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(value):
                known.add(tensor.untyped_storage().data_ptr())
                if writes or not _is_view(func):
                    self._lanes.touch(self._lane, tensor, str(func), writes, False)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            if tensor.untyped_storage().data_ptr() not in known:
                self._lanes.touch(self._lane, tensor, str(func), True, True)
        return result


def _is_view(func: Any) -> bool:
    """Whether it returns a view of its argument and writes nothing."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None for r in returns)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
