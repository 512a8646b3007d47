"""The peers: where each is installed, what it wants of its environment, and what to try on it.

Imports no engine; how each one is called stands in its script.
"""

import ctypes.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from peers.contenders import PeerError


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer as the table of peers has it: its script, where it runs, and what to try."""

    name: str
    script: str
    python_variable: str | None = None  # environment variable with its Python; None: this one
    slow: bool = False  # so slow that a part of the job has to do
    environment: Callable[[Path, int], dict[str, str]] = lambda _python, _kv_gib: {}
    orders: tuple[str, ...] = ("file", "sorted")
    tried: dict[str, tuple[int, ...]] = field(default_factory=dict)  # values of each option

    def python(self) -> Path:
        """The Python that has it. Raises PeerError if none is named."""
        if self.python_variable is None:
            return Path(sys.executable)
        named = os.environ.get(self.python_variable)
        if not named:
            raise PeerError(f"{self.python_variable} is not set: see benchmarks/README.md")
        if not Path(named).is_file():
            raise PeerError(f"{self.python_variable}: there is no {named}")
        return Path(named)

    def settings(self, fixed: dict[str, str]) -> Iterator[dict[str, str]]:
        """Every combination of prompt order and values to try; `fixed` ones take one value."""
        tried = {"order": self.orders, **self.tried}
        choices = [[fixed[name]] if name in fixed else tried[name] for name in tried]
        for values in itertools.product(*choices):
            yield dict(zip(tried, map(str, values), strict=True))


def vllm_environment(python: Path, kv_gib: int) -> dict[str, str]:
    """What vLLM's CPU build wants: threads bound to cores, a fast malloc, Intel's OpenMP."""
    cores = sorted(os.sched_getaffinity(0))
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    openmp = next(iter(sorted(python.parent.parent.glob("lib/**/libiomp5.so"))), None)
    preload = [str(library) for library in (tcmalloc, openmp) if library is not None]
    return {
        "LD_PRELOAD": ":".join(preload),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }


PEERS = (
    Peer(
        "vllm", "vllm_offline.py", "VLLM_PYTHON", environment=vllm_environment,
        tried={"max_num_batched_tokens": (2048, 4096, 8192)},
    ),
    Peer(
        "openvino", "openvino_batches.py", "OPENVINO_PYTHON",
        tried={"max_num_batched_tokens": (512, 2048)},
    ),
    Peer("llama.cpp", "llama_server.py", "LLAMA_CPP_PYTHON", tried={"slots": (16, 32)}),
    Peer(
        "transformers-continuous", "transformers_continuous.py", slow=True,
        tried={"max_requests": (8, 32)},
    ),
    Peer(
        "transformers-static", "transformers_static.py", slow=True, orders=("file",),
        tried={"batch_size": (8, 16)},
    ),
)  # fmt: skip
