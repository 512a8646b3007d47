"""A Ray cluster that somebody else has started: connect to it, and how ranks fit into it."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from blendrun.errors import InputError
from blendrun.units import count_of

_NAMESPACE = "blendrun"
_CONNECTED_S = 10.0


@dataclass(frozen=True, slots=True)
class Room:
    """What each rank gets of a cluster."""

    cores: int
    most_on_a_node: int  # ranks


def check_ray() -> None:
    """Raises InputError where Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError(
            "--launcher ray needs Ray, which is not installed", "pip install 'blendrun[ray]'"
        )


def connect(address: str | None) -> Any:
    """The module `ray`, connected; its `shutdown` leaves the cluster as it is.

    `address` as of `ray.init`; None: the environment's RAY_ADDRESS, or a cluster of this machine.

    Raises:
        InputError: Ray is not installed, or no cluster is there.
    """
    check_ray()
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    _check_reachable(address)
    ray: Any = import_module("ray")
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, namespace=_NAMESPACE, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, error) from error
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)  # Ray takes it for itself
    return ray


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes. Raises InputError."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECTED_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> InputError:
    where = "here" if address == "auto" else f"at {address}"
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InputError(
        f"no Ray cluster {where}: {why}",
        "start one with `ray start --head`, or say where it is: --ray-address HOST:PORT",
    )


def room_for(num_ranks: int, nodes: Sequence[Mapping[str, Any]]) -> Room:
    """The most cores with which all ranks run at once; `nodes` as `ray.nodes()` has them.

    Raises:
        InputError: there are fewer cores than ranks.
    """
    alive = [node for node in nodes if node["Alive"]]
    cpus = [int(node["Resources"].get("CPU", 0)) for node in alive]
    for cores in range(max(cpus, default=0), 0, -1):
        fit = [one // cores for one in cpus]
        if sum(fit) >= num_ranks:
            return Room(cores, min(max(fit), num_ranks))
    raise InputError(
        f"{count_of(num_ranks, 'rank')} need a core each: the Ray cluster has {sum(cpus)} "
        f"on {count_of(len(cpus), 'node')}",
        "add nodes, or give a smaller --dp",
    )
