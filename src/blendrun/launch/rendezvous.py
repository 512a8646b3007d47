"""How the ranks of a group find each other: a store on the first rank's machine, by its port."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from blendrun.cost.tensor_shards import Shard
from blendrun.engine.tensor_group import Ranks

_LOCALHOST = "127.0.0.1"
_CONNECTED = timedelta(minutes=2)


class Meeting(NamedTuple):
    """What a rank needs to join."""

    port: int
    timeout_s: float  # of a collective, on this rank
    in_order: bool  # see `Ranks`


def open_store() -> TCPStore:
    """The store of a new group, at a free port; the first rank keeps it."""
    return TCPStore(_LOCALHOST, 0, is_master=True, timeout=_CONNECTED, wait_for_workers=False)


def join(
    shard: Shard, meeting: Meeting, device: torch.device, why: Callable[[], str] = str
) -> Ranks:
    """Take the place of `shard`; returns when all ranks are there.

    `device`: of the tensors that ranks add up: NCCL between GPUs, Gloo between CPUs, and for all
    that the first rank tells. `why`: see `Ranks`.

    Raises:
        RuntimeError: they do not come.
    """
    store = TCPStore(
        _LOCALHOST, meeting.port, is_master=False, timeout=_CONNECTED, wait_for_workers=False
    )
    timeout = timedelta(seconds=meeting.timeout_s)
    told = _gloo(PrefixStore("told", store), shard, timeout)
    group = told
    if device.type == "cuda":
        group = _nccl(PrefixStore("tensors", store), shard, timeout)
    return Ranks(group, told, in_order=meeting.in_order, why=why)


def _gloo(store: Store, shard: Shard, timeout: timedelta) -> Any:
    """Between CPUs, over the loopback: a group has one machine."""
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname=_LOCALHOST)]
    options._timeout = timeout
    return kind(store, shard.rank, shard.size, options)


def _nccl(store: Store, shard: Shard, timeout: timedelta) -> Any:
    """Between GPUs. A collective is queued on the device: the CPU waits for none."""
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timeout
    return kind(store, shard.rank, shard.size, options)
