"""Which function of C++ computes a tensor: from the noun's own library, or none.

A noun `x` is `x.cpp`, built once per process by `build.py`. Knows nothing of what it computes.
"""

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from blendrun.errors import InputError
from blendrun.kernels.cpu import build

Backend = Literal["cpp", "torch"]
BACKEND_VARIABLE = "BLENDRUN_CPU_KERNELS"
FOLDER = Path(__file__).parent
# attention has a binding of its own
NOUNS = ("argmax", "calls", "linear", "rms_norm", "rotary", "screened_argmax", "silu_mul")
SUFFIX = {torch.bfloat16: "bf16", torch.float32: "f32"}


def wanted_backend() -> Backend | None:
    """What $BLENDRUN_CPU_KERNELS asks for; None: C++ where it compiles.

    Raises:
        InputError: it names no backend.
    """
    wanted = os.environ.get(BACKEND_VARIABLE) or None
    if wanted not in (None, "cpp", "torch"):
        raise InputError(f"{BACKEND_VARIABLE} must be cpp or torch, not {wanted!r}")
    return wanted  # type: ignore[return-value]


@functools.cache
def library(noun: str) -> build.Built:
    """The noun's library, or why there is none."""
    return build.load_library(noun, (FOLDER / f"{noun}.cpp", *sorted(FOLDER.glob("*.h"))))


def load_all() -> dict[str, str]:
    """Builds what is not built yet; by noun, in one line, what runs and why."""
    if wanted_backend() == "torch":
        return dict.fromkeys(NOUNS, "plain torch was asked for")
    return {noun: library(noun).reason for noun in NOUNS}


def kernel_function(
    noun: str, name: str, like: Tensor
) -> Callable[[ctypes.Structure], None] | None:
    """The function for tensors such as `like`, taking its call by reference; None: plain torch."""
    suffix = SUFFIX.get(like.dtype)
    if suffix is None or like.device.type != "cpu" or wanted_backend() == "torch":
        return None
    loaded = library(noun).library
    if loaded is None:
        return None
    function = getattr(loaded, f"blendrun_{name}_{suffix}")
    return lambda call: function(ctypes.byref(call))
