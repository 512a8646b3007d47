"""vLLM itself, on a CPU: `make test-vllm`. Skipped without it; each start takes a minute or two.

The folder is not called `vllm`: it would be taken for the package by whatever has `tests` in its
path.
"""

import ctypes.util
import importlib.metadata
import os
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """What vLLM's CPU build wants to have loaded first, where it is there."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make test-vllm")
    found = [ctypes.util.find_library("tcmalloc_minimal"), _openmp()]
    preload = ":".join(path for path in found if path)
    return {**os.environ, "LD_PRELOAD": preload, "VLLM_CPU_CI_ENV": "1"}


@pytest.fixture(scope="session")
def wide_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `checkpoint`, with heads of a size that vLLM's CPU kernels know."""
    from tiny_models import make_checkpoint

    return make_checkpoint(
        tmp_path_factory.mktemp("wide-llama"), hidden_size=256, intermediate_size=256
    )


def _openmp() -> str | None:
    try:
        files = importlib.metadata.files("intel-openmp") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [str(file.locate().resolve()) for file in files if file.name == "libiomp5.so"]  # type: ignore[attr-defined]
    return paths[0] if paths else None
