"""Log-probabilities of tokens and of the best alternatives, and their columns in a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

CHOSEN_TYPE = pa.list_(pa.float32())
ALTERNATIVE = pa.struct([("token_id", pa.int32()), ("logprob", pa.float32())])
TOP_TYPE = pa.list_(pa.list_(ALTERNATIVE))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms for L tokens, each with the k best at its place, best first."""

    chosen: npt.NDArray[np.float32]  # [L]; NaN: nothing comes before the token
    top_ids: npt.NDArray[np.int32]  # [L, k]
    top: npt.NDArray[np.float32]  # [L, k]


def logprob_columns(values: Sequence[TokenLogprobs | None]) -> tuple[pa.Array, pa.Array]:
    """Of each entry: the chosen tokens' (CHOSEN_TYPE), and the alternatives (TOP_TYPE).

    Null for None; the second also where k is 0. Tokens without a probability are null inside.
    """
    known = [value for value in values if value is not None]
    if not known:
        return pa.nulls(len(values), CHOSEN_TYPE), pa.nulls(len(values), TOP_TYPE)
    chosen = pa.array(np.concatenate([value.chosen for value in known]), from_pandas=True)
    lengths = [0 if value is None else len(value.chosen) for value in values]
    first = _lists(lengths, [value is None for value in values], chosen)
    many = [value for value in known if value.top.shape[1]]
    lengths = [0 if value is None else value.top.size and len(value.chosen) for value in values]
    if not many:
        return first, pa.nulls(len(values), TOP_TYPE)
    alternatives = pa.StructArray.from_arrays(
        [
            pa.array(np.concatenate([value.top_ids.ravel() for value in many]), pa.int32()),
            pa.array(np.concatenate([value.top.ravel() for value in many]), pa.float32()),
        ],
        fields=list(ALTERNATIVE),
    )
    widths = np.concatenate([np.full(len(v.chosen), v.top.shape[1]) for v in many])
    missing = np.concatenate([np.isnan(value.chosen) for value in many])
    places = _lists(widths, missing, alternatives)
    absent = [value is None or not value.top.shape[1] for value in values]
    return first, _lists(lengths, absent, places)


def _lists(
    lengths: Sequence[int] | npt.NDArray[np.int64],
    is_null: Sequence[bool] | npt.NDArray[np.bool_],
    values: pa.Array,
) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), values, mask=pa.array(np.asarray(is_null, np.bool_))
    )
