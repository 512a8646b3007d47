"""Kinds of sampling parameters: from a value of an input column to the one that is kept.

Knows types, not ranges: those are in `data.sampling`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

MOST_BIAS = 100.0  # as OpenAI documents it; more is cut to it


@dataclass(frozen=True, slots=True)
class ParamKind:
    """`convert` gives None for a value of another type. Rare parameters are null where not set."""

    convert: Callable[[Any], Any]
    wanted: str  # what a message says that the value must be
    arrow: pa.DataType
    is_rare: bool = False


def to_int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | np.integer):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def to_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def to_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def to_texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def to_token_ids(value: Any) -> tuple[int, ...] | None:
    values = list(value) if isinstance(value, list | np.ndarray) else [value]
    ids = tuple(to_int(item) for item in values)
    return None if None in ids else ids  # type: ignore[return-value]


def to_bias(value: Any) -> tuple[tuple[int, float], ...] | None:
    """Token ids with what is added to their logits, as an object, an Arrow map or JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, list) or not all(isinstance(pair, tuple) for pair in value):
        return None
    biases: dict[int, float] = {}
    for key, number in value:
        token, bias = _to_token_id(key), to_float(number)
        if token is None or bias is None or not math.isfinite(bias):
            return None
        biases[token] = min(max(bias, -MOST_BIAS), MOST_BIAS)
    return tuple(biases.items())


def _to_token_id(value: Any) -> int | None:
    if isinstance(value, str):  # as keys are in JSON
        return int(value) if value.isascii() and value.isdecimal() else None
    return to_int(value)


PARAM_KINDS: dict[str, ParamKind] = {
    "max_tokens": ParamKind(to_int, "an integer", pa.int32()),
    "temperature": ParamKind(to_float, "a number", pa.float32()),
    "top_p": ParamKind(to_float, "a number", pa.float32()),
    "top_k": ParamKind(to_int, "an integer", pa.int32()),
    "min_p": ParamKind(to_float, "a number", pa.float32()),
    "seed": ParamKind(to_int, "an integer", pa.int64()),
    "ignore_eos": ParamKind(to_bool, "true or false", pa.bool_()),
    "n": ParamKind(to_int, "an integer", pa.int32()),
    "stop": ParamKind(to_texts, "text or a list of texts", pa.list_(pa.string()), True),
    "repetition_penalty": ParamKind(to_float, "a number", pa.float32()),
    "presence_penalty": ParamKind(to_float, "a number", pa.float32()),
    "frequency_penalty": ParamKind(to_float, "a number", pa.float32()),
    "logprobs": ParamKind(to_int, "an integer", pa.int8(), True),
    "prompt_logprobs": ParamKind(to_int, "an integer", pa.int8(), True),
    "stop_token_ids": ParamKind(
        to_token_ids, "a token id or a list of them", pa.list_(pa.int32()), True
    ),
    "logit_bias": ParamKind(
        to_bias, "an object of token ids and numbers", pa.map_(pa.int32(), pa.float32()), True
    ),
}
# columns of requests that are null where not set
RARE_PARAMS = (
    *(name for name, kind in PARAM_KINDS.items() if kind.is_rare),
    "structure",
    "score_start",
)
