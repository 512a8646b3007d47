"""Continuations of prompts that are scored, not generated: what a row asks for, and their tokens.

Texts become tokens as in lm-evaluation-harness (`TemplateLM._encode_pair` in
`lm_eval/api/model.py`), so that figures compare: blanks at the end of the prompt belong to the
continuation, both are encoded together, and the continuation's tokens are those after as many as
the prompt has alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.data.answers import MOST_ANSWERS
from blendrun.data.chats import describe
from blendrun.data.columns import ColumnNames
from blendrun.data.flat_tokens import TokenIds
from blendrun.data.rows import BadRowError, Rejections, RowBatch
from blendrun.data.token_ids import checked_ids, to_ids

Continuations = list[str] | list[TokenIds]  # of one row, at least one
Encode = Callable[[Sequence[str]], list[TokenIds]]


def read_continuations(
    batch: RowBatch, names: ColumnNames, vocab_size: int, rejections: Rejections
) -> dict[int, Continuations]:
    """By row, where it asks for scores; rows whose list is not usable go to `rejections`.

    Many data sets have a number or a text named `score`: unless the column was named, only lists
    are looked at.
    """
    is_named = "score" in names.required()
    asked: dict[int, Continuations] = {}
    for row, value in enumerate(batch.columns.get(names.score, ())):
        is_list = isinstance(value, list | np.ndarray)
        if value is None or row in rejections or not (is_list or is_named):
            continue
        try:
            asked[row] = _continuations(value, vocab_size)
        except BadRowError as error:
            rejections[row] = (error.code, f"{names.score}: {error.message}")
    return asked


def context(text: str, asked: Continuations | None) -> str:
    """The part of a prompt whose tokens are those of the prompt."""
    return text.rstrip() if is_text(asked) else text


def is_text(asked: Continuations | None) -> bool:
    return asked is not None and isinstance(asked[0], str)


def tokens_after_texts(
    texts: Mapping[int, str],
    contexts: Mapping[int, TokenIds],
    asked: Mapping[int, Continuations],
    encode: Encode,
) -> dict[int, list[TokenIds]]:
    """Token ids of the continuations that rows ask for, by row.

    Args:
        texts: prompts by row.
        contexts: the tokens of their `context`, also of other rows.
    """
    rows = [row for row in texts if row in asked]
    wholes = [texts[row] + one for row in rows for one in asked[row] if isinstance(one, str)]
    encoded = iter(encode(wholes))
    return {
        row: [
            next(encoded)[len(contexts[row]) :] if isinstance(one, str) else one
            for one in asked[row]
        ]
        for row in rows
    }


def reject_empty(
    continuations: Mapping[int, list[TokenIds]], column: str, rejections: Rejections
) -> None:
    """Rows of which a continuation melts into the last token of the prompt go to `rejections`."""
    for row, each in continuations.items():
        empty = [number for number, ids in enumerate(each) if not len(ids)]
        if empty and row not in rejections:
            what = f"{column}: continuation {empty[0]} adds no token to those of the prompt"
            rejections[row] = ("bad_parameter", what)


def longest(continuations: Mapping[int, list[TokenIds]], num_rows: int) -> npt.NDArray[np.int64]:
    """Tokens of the longest continuation of each row; 0 where it asks for none."""
    lengths = np.zeros(num_rows, np.int64)
    for row, each in continuations.items():
        lengths[row] = max(map(len, each))
    return lengths


def _continuations(value: Any, vocab_size: int) -> Continuations:
    if isinstance(value, list) and not value:
        raise BadRowError("bad_parameter", "there is no continuation to score")
    if not isinstance(value, list):
        raise _bad_type(value)
    if len(value) > MOST_ANSWERS:
        raise BadRowError("bad_parameter", f"{len(value)} continuations; {MOST_ANSWERS} at most")
    texts = [one for one in value if isinstance(one, str)]
    ids = [one for one in map(to_ids, value) if one is not None]
    if len(value) not in (len(texts), len(ids)):
        raise _bad_type(next((one for one in value if not isinstance(one, str)), value))
    for number, one in enumerate(value):
        if not len(one):
            raise BadRowError("bad_parameter", f"continuation {number} is empty")
    return texts or [checked_ids(one, vocab_size) for one in ids]


def _bad_type(value: Any) -> BadRowError:
    wanted = "a list of texts, or of lists of token ids"
    return BadRowError("bad_type", f"continuations must be {wanted}, not {describe(value)}")
