"""A Ray cluster of three nodes on this machine: `make test-ray`. Skipped without Ray.

The folder is not called `ray`: it would be taken for the package by whatever has `tests` in its
path.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
_NODE = {
    "num_cpus": 1,
    "object_store_memory": 80 * 2**20,  # Ray's least is 75 MiB
    "include_dashboard": False,
}


@pytest.fixture(scope="session")
def first_cluster() -> Iterator[Any]:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: make test-ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))  # ranks find the fake engine
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        cluster = Cluster(initialize_head=True, head_node_args=_NODE)
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture
def cluster(first_cluster: Any) -> Any:
    """Three nodes of one core each, whatever the test before has done to them."""
    while len(first_cluster.worker_nodes) < 2:
        first_cluster.add_node(**_NODE)
    first_cluster.wait_for_nodes()
    return first_cluster
