"""Matrix products of bfloat16 activations with weights packed into panels: `linear.cpp`.

For CPUs with bfloat16 dot products but without matrix units (AMX), which oneDNN uses and this does
not. There it is as fast as oneDNN's packed products where a step has hundreds of tokens, up to 1.7
times as fast where it has few, and needs no pass of its own for norms, for the middle of the MLP
and for the best of the logits.

With `eps` the rows of x are divided by their root mean square first: with the weight of an RMSNorm
in the panels (`pack`), norm and product are one.
"""

import ctypes
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from blendrun.kernels.cpu.argmax import Best
from blendrun.kernels.cpu.calls import Call, Calls
from blendrun.kernels.cpu.library import library, wanted_backend


class LinearCall(ctypes.Structure):
    """`LinearCall` in linear.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "panels", "bias", "out", "scales")),
        *((name, ctypes.c_void_p) for name in ("best_values", "best_columns", "are_finite")),
        *((name, ctypes.c_int64) for name in ("num_rows", "x_row_stride")),
        *((name, ctypes.c_int64) for name in ("num_words", "num_panels", "out_width")),
        *((name, ctypes.c_int64) for name in ("is_gated", "is_added", "num_threads")),
        ("eps", ctypes.c_float),
    )


def panel_width() -> int:
    """Columns of a panel; 0 where there is no compiled kernel."""
    loaded = library("linear").library
    return 0 if loaded is None else int(loaded.blendrun_panel_width())


def is_fast() -> bool:
    """Whether this CPU is one of those that the kernel is for."""
    loaded = library("linear").library
    if loaded is None or wanted_backend() == "torch" or torch.cpu._is_amx_tile_supported():
        return False
    return bool(loaded.blendrun_has_bf16_dot())


def can_pack(weight: Tensor) -> bool:
    """Whether a weight [out, in] is bfloat16 on the CPU, and made of whole panels and words."""
    width = panel_width()
    return (
        width > 0
        and weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and weight.shape[0] % width == 0
        and weight.shape[1] % 2 == 0
    )


def pack(
    weight: Tensor,
    *,
    is_gated: bool = False,
    norm: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Panels of `weight`, [out, in]: words of 2 inputs of W neighbouring columns.

    Gated panels begin with W / 2 rows of the weight's first half, and end with those of its second
    half that belong to them. `norm` [in] multiplies inputs, rounded once. `out`: bfloat16
    [out * in], contiguous, to put them into.

    Returns:
        bfloat16 [out / W, in / 2, W, 2].

    Raises:
        ValueError: `can_pack` says no.
    """
    if not can_pack(weight):
        raise ValueError(f"cannot pack {list(weight.shape)} of {weight.dtype}")
    (num_out, num_in), width = weight.shape, panel_width()
    if norm is not None:
        weight = (weight.float() * norm.float()).to(weight.dtype)
    if is_gated:
        weight = weight.view(2, -1, width // 2, num_in).transpose(0, 1)
    columns = weight.reshape(num_out // width, width, num_in // 2, 2).transpose(1, 2)
    if out is None:
        return columns.contiguous()
    return out.view(columns.shape).copy_(columns)


def unpack(panels: Tensor, *, is_gated: bool = False) -> Tensor:
    """The weight [out, in] that `pack` was given, times its norm."""
    num_panels, num_words, width, _ = panels.shape
    columns = panels.transpose(1, 2)
    if is_gated:
        columns = columns.reshape(num_panels, 2, width // 2, -1).transpose(0, 1)
    return columns.reshape(num_panels * width, 2 * num_words)


def linear(
    x: Tensor, panels: Tensor, bias: Tensor | None = None, *, eps: float | None = None
) -> Tensor:
    """x [T, in] times the weight in `panels`, transposed, plus bias [out]; [T, out].

    A row of the result depends on that row of x alone, to the last bit. Sums are float32. `eps` is
    added to the mean square of a row, which is then normed; None: rows are taken as they are.

    Raises:
        ValueError: x is not bfloat16 [T, in] with contiguous rows.
    """
    num_panels, _, width, _ = panels.shape
    out = torch.empty(x.shape[0], num_panels * width, dtype=x.dtype)
    scales = None if eps is None else torch.empty(x.shape[0])
    _run(_call(x, panels, bias, out, scales, eps))
    return out


def linear_add(x: Tensor, panels: Tensor, bias: Tensor | None, total: Tensor) -> None:
    """Adds `linear`'s result to `total`, contiguous bfloat16 [T, out], rounded once.

    Raises:
        ValueError: as `linear`, or `total` does not fit.
    """
    num_panels, _, width, _ = panels.shape
    if total.shape != (x.shape[0], num_panels * width) or total.dtype != x.dtype:
        raise ValueError(f"total must be {x.dtype} [T, out], not {total.dtype} {list(total.shape)}")
    if not total.is_contiguous():
        raise ValueError("total must be contiguous")
    call = _call(x, panels, bias, total)
    call.is_added = 1
    _run(call)


def linear_silu_mul(
    x: Tensor, panels: Tensor, bias: Tensor | None = None, *, eps: float | None = None
) -> Tensor:
    """silu of the first half of `linear`'s columns times its second half; [T, out / 2].

    `panels` are gated, `bias` is in the order of the weight; `eps` as in `linear`. Neither half is
    rounded before they are multiplied.

    Raises:
        ValueError: x is not bfloat16 [T, in] with contiguous rows.
    """
    num_panels, _, width, _ = panels.shape
    if bias is not None:
        bias = gated_bias(bias, panels)
    out = torch.empty(x.shape[0], num_panels * width // 2, dtype=x.dtype)
    scales = None if eps is None else torch.empty(x.shape[0])
    call = _call(x, panels, bias, out, scales, eps)
    call.is_gated = 1
    _run(call)
    return out


class InARow:
    """`linear` of each x [T, in] and its panels, one after the other as in the layers of a step."""

    def __init__(self, products: Sequence[tuple[Tensor, Tensor]]) -> None:
        """
        Raises:
            ValueError: as `linear`, or there is no compiled kernel.
        """
        sizes = [(len(x), panels.shape[0] * panels.shape[2]) for x, panels in products]
        room = torch.empty(max(map(math.prod, sizes)), dtype=torch.bfloat16)
        outs = [room[: math.prod(size)].view(size) for size in sizes]  # each over the one before
        calls = [_call(x, panels, out=out) for (x, panels), out in zip(products, outs, strict=True)]
        self._made = np.frombuffer(bytearray(b"".join(map(bytes, calls))), np.dtype(LinearCall))
        kernel = ("linear", "blendrun_linear_bf16")
        ones = [self._made[i : i + 1] for i in range(len(calls))]
        self._calls = Calls([Call(*kernel, one, is_timed=False) for one in ones])
        self._kept = products  # C++ has their pointers
        self.last = outs[-1]  # result

    def run(self) -> None:
        self._made["num_threads"] = torch.get_num_threads()
        self._calls.run()


def gated_bias(bias: Tensor, panels: Tensor) -> Tensor:
    """A bias of gate and up, [out], in the order of gated panels' columns."""
    num_panels, _, width, _ = panels.shape
    return bias.view(2, num_panels, width // 2).transpose(0, 1).contiguous()


def linear_argmax(x: Tensor, panels: Tensor) -> Best:
    """`argmax.best` of `linear`'s result, which is nowhere written. Of equal ones the first.

    Raises:
        ValueError: x is not bfloat16 [T, in] with contiguous rows.
    """
    of_threads = (torch.get_num_threads(), len(x))
    values = torch.full(of_threads, -torch.inf)
    columns = torch.zeros(of_threads, dtype=torch.int64)
    finite = torch.ones(of_threads, dtype=torch.bool)
    call = _call(x, panels)
    call.best_values, call.best_columns = values.data_ptr(), columns.data_ptr()
    call.are_finite = finite.data_ptr()
    _run(call, "linear_argmax")
    value, thread = values.max(dim=0)  # threads are in the order of their columns
    return Best(columns.gather(0, thread[None])[0], value, finite.all(dim=0))


def _call(
    x: Tensor,
    panels: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    scales: Tensor | None = None,
    eps: float | None = None,
) -> LinearCall:
    """A layer makes four: what all of them need is filled in by place, which takes least time."""
    num_panels, num_words, _, _ = panels.shape
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != 2 * num_words:
        raise ValueError(f"x must be bfloat16 [T, {2 * num_words}], not {x.dtype} {list(x.shape)}")
    row_stride, stride = x.stride()
    if stride != 1 or row_stride % 2:
        raise ValueError("rows of x must be contiguous and begin at even elements")
    num_rows = x.shape[0]
    return LinearCall(
        x.data_ptr(), panels.data_ptr(), None if bias is None else bias.data_ptr(),
        None if out is None else out.data_ptr(), None if scales is None else scales.data_ptr(),
        None, None, None, num_rows, row_stride, num_words, num_panels,
        0 if out is None else out.shape[1], 0, 0, torch.get_num_threads(), eps or 0.0,
    )  # fmt: skip


def _run(call: LinearCall, name: str = "linear") -> None:
    loaded = library("linear").library
    if loaded is None:
        raise ValueError("there is no compiled kernel")
    getattr(loaded, f"blendrun_{name}_bf16")(ctypes.byref(call))
