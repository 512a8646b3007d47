"""Calls of compiled kernels in a row, without a way through Python between them: `calls.cpp`."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from blendrun.kernels.cpu.library import library


class KernelCall(ctypes.Structure):
    """`KernelCall` in calls.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("function", "argument")),
        ("is_timed", ctypes.c_int64),
    )


class Call(NamedTuple):
    """A kernel that takes one structure by reference."""

    noun: str  # of its library
    function: str
    argument: np.ndarray  # [1], a structure; must not move
    is_timed: bool


def can_run() -> bool:
    """Whether there is a compiled kernel."""
    return library("calls").library is not None


class Calls:
    """Calls that are made one after the other, again and again; what they are given may change."""

    def __init__(self, calls: Sequence[Call]) -> None:
        """
        Raises:
            ValueError: one of the kernels is not compiled.
        """
        self._kept = [call.argument for call in calls]  # C++ has their pointers
        self._calls = (KernelCall * len(calls))(
            *(
                KernelCall(_address(call), call.argument.ctypes.data, call.is_timed)
                for call in calls
            )
        )
        self._run = _compiled("calls").blendrun_run_calls
        self._run.restype = ctypes.c_double

    def run(self) -> float:
        """Seconds that the timed ones took."""
        return float(self._run(self._calls, ctypes.c_int64(len(self._calls))))


def _address(call: Call) -> int | None:
    function = getattr(_compiled(call.noun), call.function)
    return ctypes.cast(function, ctypes.c_void_p).value


def _compiled(noun: str) -> ctypes.CDLL:
    loaded = library(noun).library
    if loaded is None:
        raise ValueError(f"{noun} is not compiled")
    return loaded
