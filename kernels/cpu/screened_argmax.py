"""The best entry of each row of x times a wide weight: `screened_argmax.cpp`.

For greedy tokens: the output head of a small model is a tenth to a half of all arithmetic, and only
its best entry counts. Products of 8-bit integers, which take half as long as those of bfloat16,
tell of nearly all entries that they are not the best; the few that are left are computed in full.
The result is that of `linear.linear_argmax`, to the last bit.
"""

import ctypes
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from blendrun.kernels.cpu import linear
from blendrun.kernels.cpu.argmax import Best
from blendrun.kernels.cpu.library import library

_MAX_INPUTS = 4096  # whose sums stay within the slack of screened_argmax.cpp; a rotation is 64 MiB
_COLUMNS_AT_ONCE = 8192
_MAX_BYTE = 127


class ScreenCall(ctypes.Structure):
    """`ScreenCall` in screened_argmax.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rotated", "x", "panels", "screen", "offsets")),
        *((name, ctypes.c_void_p) for name in ("scales", "lost", "lengths", "rounded")),
        *((name, ctypes.c_void_p) for name in ("best_values", "best_columns", "are_finite")),
        ("num_exact", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_words", "num_panels")),
        ("num_threads", ctypes.c_int64),
    )


def is_fast() -> bool:
    """Whether this CPU has dot products of bytes, and its products are those of `linear`."""
    loaded = library("screened_argmax").library
    return loaded is not None and linear.is_fast() and bool(loaded.blendrun_has_byte_dot())


def can_screen(panels: Tensor) -> bool:
    """Whether the weight in `panels` has whole words of bytes, not too many, and is finite."""
    num_inputs = 2 * panels.shape[1]
    return (
        library("screened_argmax").library is not None
        and num_inputs % 4 == 0
        and num_inputs <= _MAX_INPUTS
        and bool(panels.isfinite().all())
    )


@dataclass(frozen=True, slots=True, eq=False)
class Screen:
    """A weight [N, K] in panels of W columns, and what is compared in its place."""

    panels: Tensor  # bfloat16 [N / W, K / 2, W, 2], of `linear.pack`
    rotation: Tensor  # float32 [K, K], orthogonal
    bytes: Tensor  # int8 [N / W, K / 4, W, 4]: rotated columns over their scales, rounded
    offsets: Tensor  # int32 [N]: -128 times the sum of a column's bytes
    scales: Tensor  # float32 [N]
    lost: Tensor  # float32 [N]: length of what rounding took from a column
    lengths: Tensor  # float32 [N] of rounded columns

    @classmethod
    def of(cls, panels: Tensor) -> Self:
        """The screen of a weight in `panels`, bfloat16 [N / W, K / 2, W, 2].

        Raises:
            ValueError: `can_screen` says no.
        """
        if not can_screen(panels):
            raise ValueError("the weight cannot be screened")
        weight = linear.unpack(panels)
        (num_columns, num_inputs), width = weight.shape, panels.shape[2]
        rotation = _rotation(num_inputs)
        rounded = torch.empty(num_columns, num_inputs, dtype=torch.int8)
        scales, lost, lengths = (torch.empty(num_columns) for _ in range(3))
        for start in range(0, num_columns, _COLUMNS_AT_ONCE):
            part = slice(start, start + _COLUMNS_AT_ONCE)
            rotated = weight[part].float() @ rotation
            top = rotated.abs().amax(dim=1, keepdim=True)
            scale = torch.where(top > 0, top / _MAX_BYTE, 1.0)
            rounded[part] = whole = (rotated / scale).round()
            scales[part], kept = scale[:, 0], whole * scale
            lost[part], lengths[part] = (rotated - kept).norm(dim=1), kept.norm(dim=1)
        words = rounded.view(-1, width, num_inputs // 4, 4).transpose(1, 2).contiguous()
        offsets = -128 * rounded.sum(dim=1, dtype=torch.int32)
        return cls(panels, rotation, words, offsets, scales, lost, lengths)

    def best(self, x: Tensor) -> tuple[Best, int]:
        """`linear.linear_argmax` of x [T, K] and the panels, and how many entries it computed.

        Raises:
            ValueError: x is not bfloat16 [T, K].
        """
        num_rows, num_inputs = len(x), len(self.rotation)
        if x.dtype != torch.bfloat16 or x.shape != (num_rows, num_inputs):
            raise ValueError(f"x must be bfloat16 [T, {num_inputs}], not {x.dtype} {[*x.shape]}")
        x = x.contiguous()
        rotated = x.float() @ self.rotation
        rounded = torch.empty(num_rows, num_inputs, dtype=torch.uint8)
        values = torch.empty(num_rows)
        columns = torch.empty(num_rows, dtype=torch.int64)
        finite = torch.empty(num_rows, dtype=torch.bool)
        num_exact = ctypes.c_int64()
        tensors = (rotated, x, self.panels, self.bytes, self.offsets, self.scales, self.lost,
                   self.lengths, rounded, values, columns, finite)  # fmt: skip
        call = ScreenCall(
            *(tensor.data_ptr() for tensor in tensors),
            ctypes.addressof(num_exact),
            *(num_rows, num_inputs // 4, self.panels.shape[0], torch.get_num_threads()),
        )
        loaded = library("screened_argmax").library
        assert loaded is not None
        loaded.blendrun_screened_argmax_bf16(ctypes.byref(call))
        return Best(columns, values, finite), num_exact.value


def _rotation(size: int) -> Tensor:
    """Orthogonal and without a preferred direction; the same each time."""
    random = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    orthogonal: Tensor = torch.linalg.qr(random).Q
    return orthogonal.contiguous()
