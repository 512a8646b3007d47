"""Lists of token ids in a row: from what a column holds to ids of the vocabulary."""

from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.data.flat_tokens import TokenIds
from blendrun.data.rows import BadRowError


def to_ids(value: Any) -> npt.NDArray[Any] | None:
    """The value as an array of integers of any width; None where it is no list of them.

    Raises:
        BadRowError: an integer does not fit 64 bits.
    """
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return None
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError as error:
        raise BadRowError("bad_token_id", f"a token id does not fit 64 bits: {error}") from None


def checked_ids(ids: npt.NDArray[Any], vocab_size: int) -> TokenIds:
    """The ids, if all are in the vocabulary. Raises BadRowError."""
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        position = int(np.argmax(outside))
        raise BadRowError(
            "bad_token_id",
            f"token id {ids[position]} at position {position}; the vocabulary has {vocab_size}",
        )
    return ids.astype(np.int32)
