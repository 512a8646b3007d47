"""The next token of each row of logits: greedy, or drawn from a filtered distribution.

Filters come in transformers' order: temperature, then top_k, top_p (of what top_k left), min_p
(relative to the best token). A draw inverts the cumulative probability in token-id order at a
uniform number from `noise`; batch order and batch size do not matter. Knows no requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.noise import uniforms
from blendrun.kernels.cpu.argmax import Best, argmax
from blendrun.kernels.uploads import upload

_ROWS_AT_ONCE = 32  # bounds the float64 temporaries: 32 rows of 150 K tokens are 38 MB each


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """One entry per row of logits; arrays [S]."""

    temperature: np.ndarray  # float32, 0 = greedy
    top_p: np.ndarray  # float32, 1 = off
    top_k: np.ndarray  # int32, 0 = off
    min_p: np.ndarray  # float32, 0 = off
    seed: np.ndarray  # int64
    key: np.ndarray  # int64, of the content of the request's row
    sample: np.ndarray  # int32, which of a request's samples
    position: np.ndarray  # int64, position of the drawn token in its sequence

    def take(self, rows: np.ndarray) -> "SamplingColumns":
        return SamplingColumns(
            *(getattr(self, name)[rows] for name in SamplingColumns.__dataclass_fields__)
        )


@dataclass(frozen=True, slots=True)
class TokenKernels:
    """What finds and draws tokens on a device."""

    argmax: Callable[[Tensor], tuple[Tensor, Tensor]]  # see `kernels.cpu.argmax`
    # (logits [S, vocab], best int64 [S], rows int64 [R], columns of all S) -> int64 [R], for rows
    # without top_p; None: plain torch draws
    draw: Callable[[Tensor, Tensor, np.ndarray, SamplingColumns], Tensor] | None = None

    def best(self, logits: Tensor) -> Best:
        """`argmax` of `logits` [R, N], and the values that are there."""
        return Best.of(logits, *self.argmax(logits))


PLAIN_TOKENS = TokenKernels(argmax)  # C++ on the CPU where it compiles, plain torch elsewhere


class Sampled(NamedTuple):
    """On the device of the logits."""

    token_ids: Tensor  # int64 [S]; 0 where bad
    bad: Tensor  # bool [S]: the logits held NaN or infinity


def sample(
    logits: Tensor, columns: SamplingColumns, kernels: TokenKernels = PLAIN_TOKENS
) -> Sampled:
    """A token for each row of `logits` [S, vocab]; of equal best ones greedy takes one.

    Rows with non-finite logits are reported in `bad`, not raised. Nothing waits for the device.
    """
    token_ids, finite = kernels.argmax(logits)
    random_rows = np.flatnonzero(columns.temperature > 0)
    if kernels.draw is not None:
        is_launched = columns.top_p[random_rows] >= 1
        launched, random_rows = random_rows[is_launched], random_rows[~is_launched]
        if len(launched):
            at = upload(torch.from_numpy(launched), logits.device)
            token_ids[at] = kernels.draw(logits, token_ids, launched, columns)
    for start in range(0, len(random_rows), _ROWS_AT_ONCE):
        rows = random_rows[start : start + _ROWS_AT_ONCE]
        at = upload(torch.from_numpy(rows), logits.device)
        token_ids[at] = _draw(logits[at], columns.take(rows))
    return Sampled(token_ids.masked_fill(~finite, 0), ~finite)


def filtered_probabilities(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """float64 [S, vocab] of finite logits: what each row is drawn from, not normalised.

    The best token always stays. Tokens equal to the k-th best all stay; of tokens that are equal
    at the border of top_p the lower ids stay.
    """
    scores = logits.double() / _column(columns.temperature, logits)
    scores -= scores.amax(dim=-1, keepdim=True)
    top_k = np.where(columns.top_k > 0, columns.top_k, logits.shape[-1])
    if (top_k < logits.shape[-1]).any():
        scores = _keep_top_k(scores, top_k)
    weights = scores.exp_()
    if (columns.top_p < 1).any():
        weights = _keep_top_p(weights, _column(columns.top_p, logits))
    if (columns.min_p > 0).any():
        # The best weight is exp(0) = 1.
        weights = weights.masked_fill(weights < _column(columns.min_p, logits), 0.0)
    return weights


def _draw(logits: Tensor, columns: SamplingColumns) -> Tensor:
    cumulative = filtered_probabilities(logits, columns).cumsum(dim=-1)
    u = uniforms(columns.seed, columns.key, columns.sample, columns.position)
    total = cumulative[:, -1:]
    target = _column(u, logits) * total
    # Rounding must not push the target onto the total, past the last token.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    # The first token whose cumulative weight exceeds the target has a weight above zero.
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _keep_top_k(scores: Tensor, top_k: np.ndarray) -> Tensor:
    vocab = scores.shape[-1]
    limited = np.minimum(top_k, vocab)
    limiting = limited < vocab
    best = scores.topk(int(limited[limiting].max()), dim=-1).values
    index = torch.from_numpy(np.where(limiting, limited, 1).astype(np.int64) - 1)
    border = best.gather(-1, upload(index[:, None], scores.device))
    is_free = upload(torch.from_numpy(~limiting)[:, None], scores.device)
    return scores.masked_fill((scores < border) & ~is_free, -torch.inf)


def _keep_top_p(weights: Tensor, top_p: Tensor) -> Tensor:
    ordered, token_ids = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1)
    total = before[:, -1:].clone()
    before -= ordered
    dropped = (before >= top_p * total) & (top_p < 1)
    dropped[:, 0] = False
    ordered = ordered.masked_fill(dropped, 0.0)
    return torch.zeros_like(weights).scatter_(-1, token_ids, ordered)


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    return upload(torch.from_numpy(np.asarray(values, dtype=np.float64))[:, None], like.device)
