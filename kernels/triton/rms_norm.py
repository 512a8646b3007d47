"""RMSNorm with the residual addition before it, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blendrun.kernels.triton.interpreted import rounded
from blendrun.kernels.triton.launch import Launch

_MAX_WIDTH = 32768  # what one program keeps in registers


@triton.jit
def norm_rows(hidden, branch, weight, out, width, eps, BLOCK: tl.constexpr):
    """Grid: rows."""
    first = tl.program_id(0).to(tl.int64) * width
    dims = tl.arange(0, BLOCK)
    is_dim = dims < width
    x = tl.load(hidden + first + dims, mask=is_dim, other=0.0)
    if branch is not None:
        added = tl.load(branch + first + dims, mask=is_dim, other=0.0)
        x = rounded(x.to(tl.float32) + added.to(tl.float32), hidden.dtype.element_ty)
        tl.store(hidden + first + dims, x, mask=is_dim)
    exact = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / width + eps)
    factor = tl.load(weight + dims, mask=is_dim, other=0.0).to(tl.float32)
    result = rounded(exact * scale * factor, out.dtype.element_ty)
    tl.store(out + first + dims, result, mask=is_dim)


def add_rms_norm(hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Adds `branch` to `hidden` in place, and gives the RMSNorm of the sum.

    Args:
        hidden: [T, H], contiguous; the residual stream.
        branch: [T, H] in the dtype of hidden, contiguous; None: nothing is added.
        weight: [H] in the dtype of hidden.
        eps: added to the mean square.

    Returns:
        [T, H], new. The sum is rounded to the dtype before the norm, arithmetic is float32.

    Raises:
        ValueError: shapes or dtypes do not fit, or H is above 32768.
    """
    out = torch.empty_like(hidden)
    norm_launch(hidden, branch, weight, eps, out).run()
    return out


def norm_launch(
    hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> Launch:
    """`add_rms_norm` into `out`, which is like hidden."""
    tensors = (hidden, weight) if branch is None else (hidden, weight, branch)
    if len({t.dtype for t in tensors}) > 1 or not all(t.is_contiguous() for t in tensors):
        raise ValueError("hidden, branch and weight must be contiguous and of one dtype")
    fits = branch is None or branch.shape == hidden.shape
    if hidden.dim() != 2 or weight.shape != hidden.shape[1:] or not fits:
        raise ValueError(f"hidden {list(hidden.shape)} does not fit its weight or branch")
    num_rows, width = hidden.shape
    if width > _MAX_WIDTH:
        raise ValueError(f"rows of {width} are wider than {_MAX_WIDTH}")
    block = triton.next_power_of_2(width)
    args = {"hidden": hidden, "branch": branch, "weight": weight, "out": out}
    sizes = {"width": width, "eps": eps, "BLOCK": block}
    return Launch(norm_rows, (num_rows,), {**args, **sizes}, min(max(block // 1024, 1), 16))
