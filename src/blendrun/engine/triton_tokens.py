"""Best tokens and draws of a step through our Triton kernels. Importing this imports Triton."""

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.sampler import SamplingColumns, TokenKernels
from blendrun.kernels.triton.argmax import argmax
from blendrun.kernels.triton.draw import DrawColumns, draw
from blendrun.kernels.uploads import upload


def _draw(logits: Tensor, best: Tensor, rows: np.ndarray, columns: SamplingColumns) -> Tensor:
    """See `TokenKernels.draw`. Sums are added in another order than by plain torch.

    So a token differs from that of `sampler.py` where its number falls within rounding (1e-13 of
    all weights) of a border.
    """

    def on_device(values: np.ndarray) -> Tensor:
        return upload(torch.from_numpy(values), logits.device)

    names = ("temperature", "min_p", "seed", "key", "sample", "position")
    own = {name: on_device(getattr(columns, name)) for name in names}
    lowest = torch.full((len(logits),), -torch.inf, dtype=torch.float32, device=logits.device)
    is_limited = (columns.top_k[rows] > 0) & (columns.top_k[rows] < logits.shape[1])
    limited = rows[is_limited]
    if len(limited):
        at, top_k = on_device(limited), columns.top_k[limited].astype(np.int64)
        highest = logits[at].topk(int(top_k.max())).values.float()
        lowest[at] = highest.gather(1, on_device(top_k[:, None] - 1))[:, 0]
    return draw(logits, best, on_device(rows.astype(np.int32)), DrawColumns(**own, lowest=lowest))


TRITON_TOKENS = TokenKernels(argmax, _draw)
