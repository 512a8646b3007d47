"""Who takes part: blendrun's command line, and the peers as subprocesses that stay loaded.

Knows command lines, environment variables and the lines that `harness` says; imports no engine.
"""

import contextlib
import ctypes.util
import importlib.metadata
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from peers.cli import Cli, output_tokens
from peers.job import TokenJob

_HERE = Path(__file__).resolve().parent
_SHOWN = 3000  # characters of what a failed peer said
_PATIENCE_S = 60  # for a peer to end when it is told to


class PeerError(Exception):
    """A peer cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the whole job, loading apart."""

    generate_s: float
    answers: dict[int, list[int]]  # output tokens by the job's row
    computed_prompt_tokens: int | None  # None: the engine does not say


class Contender(Protocol):
    """An engine with its settings, ready to run the job again and again."""

    name: str
    version: str
    settings: str
    load_s: float

    def run(self) -> Run:
        """The job once, nothing cached from before. Raises PeerError."""

    def close(self) -> None:
        """Free what it holds."""


@dataclass(slots=True)
class Blendrun:
    """`blendrun execute` on a plan, each time in a new run folder."""

    cli: Cli
    plan: Path
    rows: list[int]  # the job's, to find answers by
    flags: list[str]
    settings: str
    name: str = "blendrun"
    version: str = field(default_factory=lambda: importlib.metadata.version("blendrun"))
    load_s: float = 0.0

    def run(self) -> Run:
        run_dir = self.plan.with_suffix(".run")
        report = self.cli.execute(self.plan, run_dir, "--ignore-eos", *self.flags)
        answers = output_tokens(run_dir)
        shutil.rmtree(run_dir)
        self.load_s = report["load_s"]
        kept = {row: tokens for row in self.rows if (tokens := answers[row]) is not None}
        return Run(report["generate_s"], kept, report["computed_prompt_tokens"])

    def close(self) -> None:
        pass


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

    def settings(self) -> Iterator[dict[str, str]]:
        """Every combination of prompt order and values to try."""
        names = ("order", *self.tried)
        for values in itertools.product(self.orders, *self.tried.values()):
            yield dict(zip(names, map(str, values), strict=True))


class PeerProcess:
    """A peer's script that has loaded the checkpoint and waits to be told to run."""

    def __init__(
        self, peer: Peer, settings: dict[str, str], job: TokenJob, model: Path, kv_gib: int,
        work: Path,
    ) -> None:  # fmt: skip
        """Raises PeerError if it is not installed or does not start."""
        self.name = peer.name
        self.settings = ", ".join(f"{name} {value}" for name, value in settings.items())
        self._job = job.in_prefix_order() if settings["order"] == "sorted" else job
        python, job_path = peer.python(), work / f"job-{settings['order']}.json"
        self._job.save(job_path)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()
                   if name != "order"]  # fmt: skip
        self._log = (work / "peer.log").open("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            [python, _HERE / peer.script, job_path, "--model", model, f"--kv-gib={kv_gib}",
             *options],
            env={**os.environ, **peer.environment(python, kv_gib)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        said = self._listen()
        if "missing" in said:
            self.close()
            raise PeerError(said["missing"])
        self.version, self.load_s = said["version"], said["load_s"]

    def run(self) -> Run:
        requests: IO[str] | None = self._process.stdin
        assert requests is not None
        with contextlib.suppress(BrokenPipeError):  # what it said last is in the error below
            print(file=requests, flush=True)
        said = self._listen()
        if said["output_tokens"] != self._job.num_output_tokens:
            raise PeerError(
                f"made {said['output_tokens']} output tokens, not {self._job.num_output_tokens}"
            )
        answers = dict(zip(self._job.rows, said["answers"], strict=True))
        return Run(said["generate_s"], answers, said["computed_prompt_tokens"])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _listen(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            tail = self._log.read()[-_SHOWN:]
            self.close()
            raise PeerError(f"ended with {status}:\n{tail}")
        said: dict[str, Any] = json.loads(line)
        return said


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
    Peer("llama.cpp", "llama_server.py", tried={"slots": (16, 32)}),
    Peer(
        "transformers-continuous", "transformers_continuous.py", slow=True,
        tried={"max_requests": (8, 32)},
    ),
    Peer(
        "transformers-static", "transformers_static.py", slow=True, orders=("file",),
        tried={"batch_size": (8, 16)},
    ),
)  # fmt: skip
