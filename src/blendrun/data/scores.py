"""Scores of continuations: each is an answer of its row while a run goes on, and in the outputs
they are lists, one entry for each continuation of the row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SCORE_FIELDS = (
    pa.field("score_logprobs", pa.list_(pa.float64())),
    pa.field("score_num_tokens", pa.list_(pa.int32())),
    pa.field("score_is_greedy", pa.list_(pa.bool_())),
)
_TOKENS = ("num_prompt_tokens", "num_cached_tokens")
SCORE_COLUMNS = tuple(field.name for field in SCORE_FIELDS)


class Score(NamedTuple):
    """Of one continuation of a prompt."""

    logprob: float  # natural, the sum over its tokens
    num_tokens: int
    is_greedy: bool  # at none of its places was another token more likely


def score_columns(scores: Sequence[Score | None]) -> dict[str, list[list[float] | None]]:
    """Columns of SCORE_FIELDS: a list of one for each score, null where there is none."""
    return {
        name: [None if score is None else [score[part]] for score in scores]
        for part, name in enumerate(SCORE_COLUMNS)
    }


def gathered(answers: pa.Table, is_scored: npt.NDArray[np.bool_]) -> pa.Table:
    """One answer of each row that is scored, with the scores of all its continuations.

    Its prompt is what all have in common. A row of which one cannot be scored is an error row.

    Args:
        answers: in the order of their keys, all of each row.
        is_scored: of each answer, whether its row is.
    """
    if not is_scored.any():
        return answers
    begins = ~is_scored | (answers["output_index"].to_numpy() == 0)
    group = np.cumsum(begins) - 1  # of each answer, the row in the outputs
    chosen = np.flatnonzero(begins)
    lengths = np.bincount(group[is_scored], minlength=len(chosen))
    bad = np.flatnonzero(is_scored & pc.equal(answers["status"], "error").to_numpy())[::-1]
    chosen[group[bad]] = bad  # backwards, so that the first error of a row stands
    lengths[group[bad]] = 0
    good = answers.filter(pa.array(lengths[group] > 0))
    table = answers.take(pa.array(chosen))
    has_scores = lengths > 0
    first = (np.cumsum(lengths) - lengths)[has_scores]
    prompt_len, cached = (table[name].fill_null(0).to_numpy().copy() for name in _TOKENS)
    prompt_len[has_scores] -= pc.list_flatten(good["score_num_tokens"]).to_numpy()[first]
    least = np.minimum.reduceat(good["num_cached_tokens"].to_numpy(), first) if len(first) else 0
    cached[has_scores] = np.minimum(least, prompt_len[has_scores])
    index = np.where(is_scored[chosen], 0, table["output_index"].to_numpy())
    columns: dict[str, pa.Array] = {
        "output_index": pa.array(index, pa.int32()),
        **{name: _lists(good[name], lengths) for name in SCORE_COLUMNS},
    }
    for name, values in zip(_TOKENS, (prompt_len, cached), strict=True):
        columns[name] = pc.if_else(pa.array(has_scores), pa.array(values), table[name])
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table.cast(answers.schema).combine_chunks()


def _lists(ones: pa.ChunkedArray, lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Lists of one entry each put together to lists of `lengths`; null where that is 0."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    values = pc.list_flatten(ones).combine_chunks()
    return pa.LargeListArray.from_arrays(offsets, values, mask=pa.array(lengths == 0))
