"""Log-probabilities out of logits, a few rows at a time. Knows no requests.

They are those of the model itself: of its logits before bias, penalties, temperature and filters,
as vLLM gives them by default.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.tree.prefix_tree import Int32, Int64

_ROWS_AT_ONCE = 32  # bounds the copies: 32 rows of 150 K tokens are 19 MB

Float32 = npt.NDArray[np.float32]


class Logprobs(NamedTuple):
    """Of P tokens, each at one of R rows of logits, and the k best of every row."""

    chosen: Float32  # [P]
    top_ids: Int32  # [R, k]
    top: Float32  # [R, k]


class StepLogprobs(NamedTuple):
    """Of tokens that a step has drawn."""

    rows: Int64  # [A] which of the drawn tokens
    logprobs: Logprobs  # of each of them, with as many alternatives as any of them asks for


def logprobs(logits: Tensor, pair_row: Int64, pair_token: Int64, top_k: int) -> Logprobs:
    """Of token `pair_token[i]` at row `pair_row[i]` of float32 `logits` [R, vocab]."""
    normaliser = logits.logsumexp(dim=-1)
    at = torch.from_numpy(pair_row).to(logits.device)
    chosen = logits[at, torch.from_numpy(pair_token).to(logits.device)] - normaliser[at]
    best = logits.topk(top_k, dim=-1)
    return Logprobs(
        chosen.cpu().numpy(),
        best.indices.cpu().numpy().astype(np.int32),
        (best.values - normaliser[:, None]).cpu().numpy(),
    )


def drawn_logprobs(logits: Tensor, rows: Int64, token_ids: Int32, top_k: int) -> StepLogprobs:
    """Of the drawn `token_ids` [R] at those `rows` [A] of `logits` [R, vocab]."""
    parts = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        part = logits[torch.from_numpy(some).to(logits.device)].float()
        at = np.arange(len(some), dtype=np.int64)
        parts.append(logprobs(part, at, token_ids[some].astype(np.int64), top_k))
    return StepLogprobs(rows, joined(parts))


def joined(parts: list[Logprobs]) -> Logprobs:
    """Several, one after the other, with equal k."""
    return Logprobs(*(np.concatenate(column) for column in zip(*parts, strict=True)))
