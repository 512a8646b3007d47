"""Three Ray nodes on this machine: `make test-ray`. Without Ray nothing here is collected."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]
TESTS = Path(__file__).parent.parent
_OBJECT_STORE_BYTES = 80 * 2**20  # Ray's least


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Nodes of two cores each, so that a rank whose node is lost finds room."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(TESTS))  # ranks find the fake engine
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    node = {
        "num_cpus": 1,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    nodes = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(2):
            nodes.add_node(**node)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        nodes.shutdown()
        os.sync()
