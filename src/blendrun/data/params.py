"""Sampling parameters of each row: the job's defaults, overridden by columns.

Types are those of `PARAM_KINDS`, ranges those of `SamplingParams`. Knows no prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.data.columns import ColumnNames
from blendrun.data.param_kinds import PARAM_KINDS, ParamKind, to_int
from blendrun.data.rows import BadRowError, Rejections, RowBatch
from blendrun.data.sampling import SamplingParams
from blendrun.data.structures import read_structures
from blendrun.errors import InputError

_OUTPUT_LEN = "output_len"
_KINDS = {**PARAM_KINDS, _OUTPUT_LEN: replace(PARAM_KINDS["max_tokens"], convert=to_int)}


@dataclass(frozen=True, slots=True)
class ParamColumns:
    """Parameters of the rows of one batch, each of its length."""

    numbers: dict[str, npt.NDArray[Any]]  # by field of SamplingParams
    rare: dict[str, list[Any]]  # likewise, only fields that some row may set; None = not set
    expected_len: npt.NDArray[np.int64]  # tokens expected of the answer; -1 = not known


def read_params(
    batch: RowBatch,
    names: ColumnNames,
    defaults: SamplingParams,
    vocab_size: int,
    rejections: Rejections,
) -> ParamColumns:
    """Parameters of every row; those of another type or out of range go to `rejections`."""
    num_rows = len(batch)
    numbers: dict[str, npt.NDArray[Any]] = {}
    rare: dict[str, list[Any]] = {}
    expected_len = np.full(num_rows, -1, np.int64)
    for field, kind in _KINDS.items():
        column = {"max_tokens": names.max_tokens, _OUTPUT_LEN: names.output_len}.get(field, field)
        is_set = column in batch.columns
        target: Any
        if field == _OUTPUT_LEN:
            target = expected_len
        elif kind.is_rare:
            default = getattr(defaults, field)
            target = [None if default == () else default] * num_rows
            if is_set or default not in ((), None):
                rare[field] = target
        else:
            target = np.full(num_rows, getattr(defaults, field), kind.arrow.to_pandas_dtype())
            numbers[field] = target
        if is_set:
            check = _checker(field, kind, column, defaults, vocab_size)
            _fill(target, batch.columns[column], check, rejections)
    structures = read_structures(batch, defaults.structure, rejections)
    if structures:
        rare["structure"] = structures
    return ParamColumns(numbers, rare, expected_len)


def _fill(
    target: Any, values: Sequence[Any], check: Callable[[Any], Any], rejections: Rejections
) -> None:
    known: dict[tuple[type, Any], Any] = {}  # most rows of a job hold the same few values
    for row, value in enumerate(values):
        if value is None or row in rejections:
            continue
        try:
            if isinstance(value, list | dict | np.ndarray):
                target[row] = check(value)
                continue
            key = (type(value), value)
            if key not in known:
                known[key] = check(value)
            target[row] = known[key]
        except BadRowError as error:
            rejections[row] = (error.code, error.message)


def _checker(
    field: str, kind: ParamKind, column: str, defaults: SamplingParams, vocab_size: int
) -> Callable[[Any], Any]:
    known: dict[Any, Any] = {}  # equal lists become one

    def check(value: Any) -> Any:
        converted = kind.convert(value)
        if converted is None:
            raise BadRowError(
                "bad_parameter", f"{column} must be {kind.wanted}, not {_shown(value)}"
            )
        if field == _OUTPUT_LEN:
            if not 0 <= converted < 2**31:
                raise BadRowError("bad_parameter", f"{column} must be 0 or above, not {value!r}")
            return converted
        if converted not in known:
            try:
                replace(defaults, **{field: converted}).validate(vocab_size)
            except InputError as error:
                where = "" if column == field else f"{column}: "
                raise BadRowError(
                    "bad_parameter", f"{where}{error.message}, not {_shown(value)}"
                ) from None
            known[converted] = converted
        return known[converted]

    return check


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
