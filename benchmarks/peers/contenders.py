"""The peers as subprocesses: what each is started with, and the times that it gives back.

Knows command lines and environment variables; imports no engine.
"""

import ctypes.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SHOWN = 3000  # characters of what a failed peer said


@dataclass(frozen=True, slots=True)
class Timing:
    """Generation seconds of every repeat, loading apart."""

    generate_s: list[float]
    load_s: float
    output_tokens: int
    note: str


class PeerError(Exception):
    """A peer cannot run here; the message says why."""


def run_transformers(
    job: Path, folder: Path, batch_sizes: str, sample_rows: int, repeats: int, threads: int | None
) -> Timing:
    """Static batching. Raises PeerError."""
    args = [job, "--model", folder, "--batch-sizes", batch_sizes, "--sample-rows", sample_rows]
    return _run(Path(sys.executable), "transformers_static.py", args, repeats, _threads(threads))


def run_vllm(
    python: Path, job: Path, folder: Path, num_batched_tokens: int | None, repeats: int,
    threads: int | None, kv_gib: int,
) -> Timing:  # fmt: skip
    """vLLM's offline engine in the environment of `python`. Raises PeerError."""
    args: list[object] = [job, "--model", folder]
    if num_batched_tokens is not None:
        args += ["--max-num-batched-tokens", num_batched_tokens]
    env = vllm_environment(python, threads, kv_gib)
    return _run(python, "vllm_offline.py", args, repeats, env)


def vllm_environment(python: Path, threads: int | None, kv_gib: int) -> dict[str, str]:
    """What vLLM's CPU backend wants: threads bound to cores, a fast malloc, Intel's OpenMP."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    openmp = next(iter(sorted(python.parent.parent.glob("lib/**/libiomp5.so"))), None)
    preload = [str(library) for library in (tcmalloc, openmp) if library is not None]
    return {
        "LD_PRELOAD": ":".join(preload),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "HF_HUB_OFFLINE": "1",
    }


def _threads(threads: int | None) -> dict[str, str]:
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads)}


def _run(
    python: Path, script: str, args: list[object], repeats: int, env: dict[str, str]
) -> Timing:
    if not python.is_file():
        raise PeerError(f"there is no {python}")
    command = [str(python), str(_HERE / script), *map(str, args), "--repeats", str(repeats)]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        raise PeerError("not installed: " + done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise PeerError(
            f"{script} ended with {done.returncode}:\n"
            f"{done.stdout[-_SHOWN:]}{done.stderr[-_SHOWN:]}"
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    said = json.loads(lines[-1])
    note = f"{said['version']}{', ' + said['note'] if 'note' in said else ''}"
    return Timing(said["generate_s"], said["load_s"], said["output_tokens"], note)
