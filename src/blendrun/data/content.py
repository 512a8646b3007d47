"""What an answer depends on, as 16 bytes: a hash of a row's prompt and its effective parameters.

Equal rows have equal hashes, wherever they stand and whatever file they come from. How many
answers a row asks for is not in it: the first answer is the same whether there is a second.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.param_kinds import PARAM_KINDS, RARE_PARAMS

CONTENT_BYTES = 16
Hashes = npt.NDArray[np.uint8]  # [rows, CONTENT_BYTES]
_NUMBERS = tuple(name for name, kind in PARAM_KINDS.items() if not kind.is_rare and name != "n")
_SETS = ("stop", "stop_token_ids", "logit_bias")  # their order changes nothing


def content_hashes(
    numbers: Mapping[str, npt.NDArray[Any]],
    rare: Mapping[str, Sequence[Any]],
    prompts: FlatTokens,
) -> Hashes:
    """A hash of each request.

    Args:
        numbers: effective values [rows] of the parameters that every row has; others are ignored.
        rare: likewise of those that most rows do not set, None where not set.
    """
    num_rows = len(prompts.lengths)
    parts = [_bytes_of(numbers[name], num_rows) for name in _NUMBERS]
    parts += [_hashed(name, rare.get(name, ()), num_rows) for name in RARE_PARAMS]
    records = np.concatenate(parts, axis=1)
    width, record_bytes = records.shape[1], records.reshape(-1).data
    token_bytes = np.ascontiguousarray(prompts.tokens, "<i4").view(np.uint8).data
    hashes, begin = bytearray(), 0
    for row, end in enumerate((4 * np.cumsum(prompts.lengths)).tolist()):
        one = blake2b(record_bytes[row * width : (row + 1) * width], digest_size=CONTENT_BYTES)
        one.update(token_bytes[begin:end])
        hashes += one.digest()
        begin = end
    return np.frombuffer(hashes, np.uint8).reshape(num_rows, CONTENT_BYTES)


def as_binary(rows: npt.NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    """Each row of bytes as one value."""
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, data])


def as_bytes(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """The bytes of values of one width, [rows, width]; no value is null."""
    width = column.type.byte_width
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [
        np.frombuffer(chunk.buffers()[1], np.uint8).reshape(-1, width)[chunk.offset :][: len(chunk)]
        for chunk in chunks
        if len(chunk)
    ]
    if len(parts) == 1:  # not copied
        return parts[0]
    return np.concatenate([np.zeros((0, width), np.uint8), *parts])


def _bytes_of(values: npt.NDArray[Any], num_rows: int) -> npt.NDArray[np.uint8]:
    """The bytes of each number, [rows, width]."""
    if values.dtype.kind == "f":
        values = values + values.dtype.type(0)  # −0 is 0
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(num_rows, values.dtype.itemsize)


def _hashed(name: str, values: Sequence[Any], num_rows: int) -> Hashes:
    """A hash of each value of a rare parameter; zeros where it is not set."""
    hashes = np.zeros((num_rows, CONTENT_BYTES), np.uint8)
    known: dict[Any, Hashes] = {}
    for row, value in enumerate(values):
        if value is None or value == ():
            continue
        if value not in known:
            text = repr(sorted(set(value)) if name in _SETS else value)
            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=CONTENT_BYTES)
            known[value] = np.frombuffer(digest.digest(), np.uint8)
        hashes[row] = known[value]
    return hashes
