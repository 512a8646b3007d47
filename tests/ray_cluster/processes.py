"""Processes of a test cluster, found by their parents: other clusters are not looked at."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Started by any thread of the process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found


def ranks_on(node: Any) -> list[int]:
    """Processes that ranks have on a node."""
    raylet = node.all_processes["raylet"][0].process.pid
    actors = [pid for pid in children(raylet) if "RankActor" in _command(pid)]
    return [pid for actor in actors for pid in children(actor) if "spawn_main" in _command(pid)]


def ranks_of(cluster: Any) -> list[int]:
    return [pid for node in cluster.list_all_nodes() for pid in ranks_on(node)]


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
