"""Log-probabilities out of logits, a few rows at a time. Knows no requests.

They are those of the model itself: of its logits before bias, penalties, temperature and filters,
as vLLM gives them by default.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.engine.arrival import Arrival
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64

_ROWS_AT_ONCE = 32  # bounds the copies: 32 rows of 150 K tokens are 19 MB

Float32 = npt.NDArray[np.float32]


class Logprobs(NamedTuple):
    """Of P tokens, each at one of R rows of logits, and the k best of every row."""

    chosen: Float32  # [P]
    top_ids: Int32  # [R, k]
    top: Float32  # [R, k]

    @classmethod
    def arrived(cls, arrival: Arrival) -> "Logprobs":
        """Of `LogprobTensors`; waits for them."""
        chosen, top_ids, top = arrival.wait()
        # answers keep rows of it: not in memory that a device copies into
        return cls(chosen, top_ids.astype(np.int32), top.copy())


class LogprobTensors(NamedTuple):
    """`Logprobs`, on the device of the logits."""

    chosen: Tensor  # float32 [P]
    top_ids: Tensor  # int64 [R, k]
    top: Tensor  # float32 [R, k]


class StepLogprobs(NamedTuple):
    """Of tokens that a step has drawn."""

    rows: Int64  # [A] which of the drawn tokens
    logprobs: Logprobs  # of each of them, with as many alternatives as any of them asks for


def logprobs(logits: Tensor, pair_row: Tensor, pair_token: Tensor, top_k: int) -> LogprobTensors:
    """Of token `pair_token[i]` at row `pair_row[i]`, int64 [P], of float32 `logits` [R, vocab]."""
    normaliser = logits.logsumexp(dim=-1)
    chosen = logits[pair_row, pair_token] - normaliser[pair_row]
    best = logits.topk(top_k, dim=-1)
    return LogprobTensors(chosen, best.indices, best.values - normaliser[:, None])


def drawn_logprobs(logits: Tensor, rows: Int64, token_ids: Tensor, top_k: int) -> LogprobTensors:
    """Of the drawn `token_ids` [R] at those `rows` [A] of `logits` [R, vocab]."""
    parts = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = upload(torch.from_numpy(rows[start : start + _ROWS_AT_ONCE]), logits.device)
        at = torch.arange(len(some), device=logits.device)
        parts.append(logprobs(logits[some].float(), at, token_ids[some], top_k))
    return joined(parts)


def joined(parts: list[LogprobTensors]) -> LogprobTensors:
    """Several, one after the other, with equal k."""
    return LogprobTensors(*(torch.cat(column) for column in zip(*parts, strict=True)))
