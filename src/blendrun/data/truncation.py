"""Prompts that are too long for the context, cut at one end."""

import numpy as np
import numpy.typing as npt

from blendrun.data.flat_tokens import FlatTokens, TokenIds
from blendrun.data.input_options import Truncate


def cut_prompts(
    prompts: FlatTokens,
    context_len: int,
    max_tokens: npt.NDArray[np.int32],
    score_len: npt.NDArray[np.int64],
    side: Truncate,
    bos_id: int | None,
) -> tuple[FlatTokens, npt.NDArray[np.int64]]:
    """The prompts, and the rows of those that were cut: those of `context_len` tokens or more.

    They keep what leaves room for `max_tokens`, but no less than half of the context. With
    continuations of `score_len` tokens to score (0: none), they keep what those leave. A BOS at
    the start stays.
    """
    cut = np.flatnonzero(prompts.lengths + np.maximum(score_len, 1) > context_len)
    if not len(cut):
        return prompts, cut
    each = np.split(prompts.tokens, np.cumsum(prompts.lengths)[:-1])
    for row in cut.tolist():
        room = int(score_len[row]) or max(1, min(int(max_tokens[row]), context_len // 2))
        each[row] = _cut(each[row], max(1, context_len - room), side, bos_id)
    return FlatTokens.of(each), cut


def _cut(ids: TokenIds, keep: int, side: Truncate, bos_id: int | None) -> TokenIds:
    if side == "right":
        return ids[:keep]
    if bos_id is None or ids[0] != bos_id:
        return ids[len(ids) - keep :]
    return np.concatenate([ids[:1], ids[len(ids) - keep + 1 :]])
