"""Compiles a C++ kernel at first use into a shared library, and keeps it in a cache.

A library is named after everything that could change it: sources, compiler, flags, CPU features,
torch version. Knows nothing of what the kernels compute.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BASE_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-Wno-psabi")
# Not every compiler knows every one of these: the first set that compiles is used.
EXTRA_FLAGS = tuple(
    (*threads, *target)
    for threads in (("-fopenmp",), ())
    for target in (("-march=native",), ("-mcpu=native",), ())
)
FLAGS_VARIABLE = "BLENDRUN_CXXFLAGS"  # more flags, after all others
COMPILERS = ("c++", "g++", "clang++")
COMPILE_LIMIT_S = 300
_DIGEST_BYTES = hashlib.sha256().digest_size


class BuildError(Exception):
    """The library could not be built; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Built:
    """A loaded library, or None; `reason` says in one line which and why."""

    library: ctypes.CDLL | None
    reason: str


def cache_dir() -> Path:
    """Folder of the compiled kernels: under $BLENDRUN_CACHE_DIR, else under ~/.cache/blendrun."""
    base = os.environ.get("BLENDRUN_CACHE_DIR")
    return (Path(base) if base else Path.home() / ".cache" / "blendrun") / "kernels"


def load_library(name: str, sources: Sequence[Path], folder: Path | None = None) -> Built:
    """Compiles sources[0] (the others are headers) unless `folder` has it, and loads it.

    Any number of processes may do this at once: each builds under a name of its own and renames.
    """
    try:
        compiler = find_compiler()
        target = (folder or cache_dir()) / f"{name}-{_key(compiler, sources)}.so"
        if not _is_intact(target):
            _build(compiler, sources[0], target)
        return Built(ctypes.CDLL(str(target)), f"compiled with {shlex.join(compiler)}")
    except (BuildError, OSError) as error:
        return Built(None, f"no compiled kernel: {error}")


def find_compiler() -> list[str]:
    """Command of the C++ compiler: $CXX where it is set, else the first of COMPILERS on PATH.

    Raises:
        BuildError: there is none.
    """
    chosen = os.environ.get("CXX")
    command = shlex.split(chosen) if chosen else []
    candidates = [command] if command else [[name] for name in COMPILERS]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            return candidate
    wanted = f"CXX={chosen}" if command else ", ".join(COMPILERS)
    raise BuildError(f"no C++ compiler found (looked for {wanted})")


def _key(compiler: Sequence[str], sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    parts = [
        _compiler_version(tuple(compiler)),
        _cpu_features(),
        importlib.metadata.version("torch"),
    ]
    parts += [repr((*compiler, BASE_FLAGS, EXTRA_FLAGS, _own_flags()))]
    for part in [*(p.encode() for p in parts), *(path.read_bytes() for path in sources)]:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:20]


@functools.cache
def _compiler_version(compiler: tuple[str, ...]) -> str:
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def _cpu_features() -> str:
    """The CPU's instruction sets, or at least its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return f"{platform.machine()} {features[0] if features else ''}"


def _build(compiler: Sequence[str], source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        _compile(compiler, source, built)
        content = built.read_bytes()
        # ELF ignores what follows its last section, so the check travels in the file itself.
        built.write_bytes(content + hashlib.sha256(content).digest())
        built.replace(target)


def _is_intact(target: Path) -> bool:
    """Whether a cached library ends with the digest of the rest (loading half a file can crash)."""
    if not target.is_file():
        return False
    content = target.read_bytes()
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


def _compile(compiler: Sequence[str], source: Path, built: Path) -> None:
    complaint = ""
    for extra_flags in EXTRA_FLAGS:
        flags = [*BASE_FLAGS, *extra_flags, *_own_flags()]
        command = [*compiler, *flags, str(source), "-o", str(built)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{compiler[0]} took more than {COMPILE_LIMIT_S} s") from error
        if done.returncode == 0:
            return
        complaint = _first_error(done.stderr) or f"exit status {done.returncode}"
    raise BuildError(f"{shlex.join(compiler)} failed on {source.name}: {complaint}")


def _own_flags() -> list[str]:
    return shlex.split(os.environ.get(FLAGS_VARIABLE, ""))


def _first_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
