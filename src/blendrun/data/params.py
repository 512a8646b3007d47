"""Sampling parameters of each row: the job's defaults, overridden by columns.

Knows types and ranges, through `SamplingParams`; not prompts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.data.columns import PARAM_COLUMNS, ColumnNames
from blendrun.data.rows import BadRowError, Rejections, RowBatch
from blendrun.data.sampling import SamplingParams
from blendrun.errors import InputError

_DTYPES = {
    "max_tokens": np.int32,
    "temperature": np.float32,
    "top_p": np.float32,
    "top_k": np.int32,
    "min_p": np.float32,
    "seed": np.int64,
    "ignore_eos": np.bool_,
}


@dataclass(frozen=True, slots=True)
class ParamColumns:
    """Parameters of the rows of one batch, each of its length."""

    numbers: dict[str, npt.NDArray[Any]]  # the fields of SamplingParams except `stop`
    stop: list[tuple[str, ...]]
    expected_len: npt.NDArray[np.int64]  # tokens expected of the answer; -1 = not known


def read_params(
    batch: RowBatch, names: ColumnNames, defaults: SamplingParams, rejections: Rejections
) -> ParamColumns:
    """Parameters of every row; those of another type or out of range go to `rejections`."""
    num_rows = len(batch)
    numbers: dict[str, npt.NDArray[Any]] = {
        field: np.full(num_rows, getattr(defaults, field), dtype)
        for field, dtype in _DTYPES.items()
    }
    stop = [defaults.stop] * num_rows
    expected_len = np.full(num_rows, -1, np.int64)
    targets: dict[str, Any] = {**numbers, "stop": stop, "output_len": expected_len}
    columns = {name: name for name in PARAM_COLUMNS}
    columns |= {"max_tokens": names.max_tokens, "output_len": names.output_len}
    for field, column in columns.items():
        if column in batch.columns:
            check = _checker(field, column, defaults)
            _fill(targets[field], batch.columns[column], check, rejections)
    return ParamColumns(numbers, stop, expected_len)


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


def _checker(field: str, column: str, defaults: SamplingParams) -> Callable[[Any], Any]:
    convert = _CONVERT[field]

    def check(value: Any) -> Any:
        converted = convert(value)
        if converted is None:
            raise BadRowError(
                "bad_parameter", f"{column} must be {_WANTED[convert]}, not {_shown(value)}"
            )
        if field == "output_len":
            if not 0 <= converted < 2**31:
                raise BadRowError("bad_parameter", f"{column} must be 0 or above, not {value!r}")
            return converted
        try:
            replace(defaults, **{field: converted}).validate()
        except InputError as error:
            raise BadRowError("bad_parameter", f"{error.message}, not {_shown(value)}") from None
        return converted

    return check


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _to_int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def _to_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _to_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _to_stop(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "max_tokens": _to_int,
    "output_len": _to_int,
    "temperature": _to_float,
    "top_p": _to_float,
    "top_k": _to_int,
    "min_p": _to_float,
    "seed": _to_int,
    "stop": _to_stop,
    "ignore_eos": _to_bool,
}
_WANTED: dict[Callable[[Any], Any], str] = {
    _to_int: "an integer",
    _to_float: "a number",
    _to_bool: "true or false",
    _to_stop: "text or a list of texts",
}
