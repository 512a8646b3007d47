"""`@compiled`: numba functions whose cache on disk follows the whole package's source.

numba's own cache looks at the file of the function alone, so a changed callee in another file
would leave a stale caller; and it lies beside the source, where an installation may be read-only.
Here the cache folder is named after a hash of every file that holds compiled code.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import ParamSpec, TypeVar

import numba
from numba.core import config

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at first call, or load what an earlier process compiled."""
    return _compiled(function, from_python=True)


def compiled_part(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for functions that only compiled ones call: half the time to compile."""
    return _compiled(function, from_python=False)


def _compiled(function: Callable[P, R], from_python: bool) -> Callable[P, R]:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_folder())
    try:
        made: Callable[P, R] = numba.njit(
            cache=True,
            error_model="numpy",
            no_cpython_wrapper=not from_python,
            no_cfunc_wrapper=True,
        )(function)
    finally:
        config.CACHE_DIR = before
    return made


def is_first_use() -> bool:
    """Whether the batcher has to be compiled first, which takes about half a minute."""
    return not config.DISABLE_JIT and not any(_cache_folder().rglob("decide.decide*.nbi"))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits until no other process with the same cache is in here, where files can be locked."""
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _cache_folder() -> Path:
    package = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(package.glob("*/**/*.py")):
        source = path.read_bytes()
        if b"compiled" in source:
            digest.update(path.name.encode() + source)
    root = Path(os.environ.get("BLENDRUN_CACHE_DIR") or Path.home() / ".cache" / "blendrun")
    return root / "compiled" / digest.hexdigest()[:12]
