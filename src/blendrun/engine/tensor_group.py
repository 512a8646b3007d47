"""What the ranks of a tensor-parallel group say to each other.

The first rank decides and tells, the others hear and follow; then all of them compute, and meet in
collectives of equal order and shapes. Knows neither models nor requests.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from blendrun.cost.tensor_shards import WHOLE, Shard
from blendrun.errors import BackendError, RankLostError
from blendrun.tree.prefix_tree import Int32

_HEADER_LEN = 24  # numbers: kind, payload's length, the others


class Message(NamedTuple):
    """What the first rank tells: numbers, and arrays joined to one."""

    kind: int
    numbers: Sequence[int]
    payload: Int32


class TensorGroup(Protocol):
    """`sum`, `least` and `gather` are called by all ranks, in the same order."""

    @property
    def shard(self) -> Shard: ...

    def sum(self, x: Tensor) -> Tensor:
        """The ranks' tensors added up; may be `x`, changed in place."""

    def least(self, value: int) -> int:
        """The smallest of the ranks' numbers."""

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """The ranks' tensors, of equal shape, on the first rank; None on the others."""

    def tell(self, message: Message) -> None:
        """From the first rank to the others."""

    def hear(self) -> Message:
        """What the first rank tells next."""


class Alone:
    """A group of one rank."""

    shard = WHOLE

    def sum(self, x: Tensor) -> Tensor:
        return x

    def least(self, value: int) -> int:
        return value

    def gather(self, x: Tensor) -> list[Tensor] | None:
        return [x]

    def tell(self, message: Message) -> None:
        pass

    def hear(self) -> Message:
        raise BackendError("nobody tells a rank that is alone anything")


ALONE = Alone()


class Ranks:
    """Several ranks, by process groups of torch.distributed."""

    def __init__(
        self,
        group: Any,
        told: Any,
        *,
        in_order: bool,
        why: Callable[[], str],
    ) -> None:
        """`group` adds up and gathers tensors where they are, `told` has what is on the CPU.

        They are a `ProcessGroupGloo` or `ProcessGroupNCCL`, whose stubs lack most methods; between
        CPUs they are the same one. `in_order`: sums are rounded alike at every place of a tensor,
        at the cost of more traffic; `why` says, after a failure, what became of the other ranks.
        """
        self.shard = Shard(group.rank(), group.size())
        self._group, self._told = group, told
        self._in_order, self._why = in_order, why

    def sum(self, x: Tensor) -> Tensor:
        with self._failing():
            if not self._in_order:
                self._group.allreduce([x]).wait()
                return x
            parts = [torch.empty_like(x) for _ in range(self.shard.size)]
            self._group.allgather([parts], [x]).wait()
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total

    def least(self, value: int) -> int:
        number = torch.tensor([value])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        with self._failing():
            self._told.allreduce([number], options).wait()
        return int(number)

    def gather(self, x: Tensor) -> list[Tensor] | None:
        is_first = self.shard.rank == 0
        parts = [torch.empty_like(x) for _ in range(self.shard.size)] if is_first else None
        with self._failing():
            self._group.gather([parts] if parts else [], [x], dist.GatherOptions()).wait()
        return parts

    def tell(self, message: Message) -> None:
        header = np.zeros(_HEADER_LEN, np.int64)
        header[: 2 + len(message.numbers)] = message.kind, len(message.payload), *message.numbers
        self._broadcast(torch.from_numpy(header))
        if len(message.payload):
            self._broadcast(torch.from_numpy(message.payload))

    def hear(self) -> Message:
        header = self._broadcast(torch.zeros(_HEADER_LEN, dtype=torch.int64))
        kind, length, *numbers = header.tolist()
        payload = torch.zeros(length, dtype=torch.int32)
        if length:
            payload = self._broadcast(payload)
        return Message(kind, numbers, payload.numpy())

    def _broadcast(self, x: Tensor) -> Tensor:
        with self._failing():
            self._told.broadcast([x]).wait()
        return x

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLostError(
                f"a tensor-parallel rank does not answer: {self._why()}",
                "what is finished is saved; the same command continues",
            ) from error
