"""Dense work on a fixed number of rows at a time.

Libraries of matrix products choose their way by the number of rows, and round accordingly. In
blocks of one size, the last filled up with zeros, a row's values are its own, wherever it stands.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ROW_BLOCK = 64

RowFunction = Callable[..., tuple[Tensor, ...]]  # of row i of its inputs to row i of its outputs


def in_blocks(function: RowFunction, size: int | None, *rows: Tensor) -> tuple[Tensor, ...]:
    """What `function` makes of `rows`, each [T, …], in blocks of `size`; None: of all at once."""
    num_rows = len(rows[0])
    if size is None or num_rows == 0:
        return function(*rows)
    made = [
        [out[: num_rows - start] for out in function(*(_block(x, start, size) for x in rows))]
        for start in range(0, num_rows, size)
    ]
    return tuple(torch.cat(parts) for parts in zip(*made, strict=True))


def _block(x: Tensor, start: int, size: int) -> Tensor:
    block = x[start : start + size]
    if len(block) == size:
        return block
    whole = x.new_zeros(size, *x.shape[1:])
    whole[: len(block)] = block
    return whole
