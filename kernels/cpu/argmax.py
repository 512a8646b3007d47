"""The best entry of each row of logits: `argmax.cpp`, or plain torch."""

import ctypes
from typing import NamedTuple, Self

import torch
from torch import Tensor

from blendrun.kernels.cpu import argmax_reference as reference
from blendrun.kernels.cpu.library import kernel_function


class ArgmaxCall(ctypes.Structure):
    """`ArgmaxCall` in argmax.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "best", "finite")),
        *((name, ctypes.c_int64) for name in ("num_rows", "row_len", "num_threads")),
    )


class Best(NamedTuple):
    """Of each of R rows of logits."""

    column: Tensor  # int64 [R], one of the best where several are equal
    value: Tensor  # [R], in any dtype; what it and the column are where not finite does not matter
    finite: Tensor  # bool [R]: whether all of the row is

    @classmethod
    def of(cls, logits: Tensor, column: Tensor, finite: Tensor) -> Self:
        """What an `argmax` of `logits` [R, N] has found, and the values that are there."""
        return cls(column, logits.gather(1, column[:, None])[:, 0], finite)


def best(logits: Tensor) -> Best:
    """`argmax` of `logits` [R, N], and the values that are there.

    Raises:
        ValueError: as `argmax`.
    """
    return Best.of(logits, *argmax(logits))


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Where each row of `logits` [R, N] is highest, and whether all of it is finite.

    Copies logits only where they are not contiguous.

    Returns:
        int64 [R], one of the best where several are equal, anything where not finite; bool [R].

    Raises:
        ValueError: they are not two-dimensional, or N is 0.
    """
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [R, N], N > 0, not {list(logits.shape)}")
    function = kernel_function("argmax", "argmax", logits)
    if function is None:
        return reference.argmax(logits)
    logits = logits.contiguous()
    best = torch.empty(logits.shape[0], dtype=torch.int64)
    finite = torch.empty(logits.shape[0], dtype=torch.bool)
    pointers = (logits.data_ptr(), best.data_ptr(), finite.data_ptr())
    function(ArgmaxCall(*pointers, *logits.shape, torch.get_num_threads()))
    return best, finite
