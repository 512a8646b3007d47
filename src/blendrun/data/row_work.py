"""From a piece of rows to requests, rejected rows and tokens: the work that runs in parallel.

Knows the limits of a request; not where rows come from or where tokens go. Rows are counted from
the start of the piece.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.columns import ColumnNames
from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.json_kinds import KindTracker
from blendrun.data.param_kinds import PARAM_KINDS
from blendrun.data.params import ParamColumns, read_params
from blendrun.data.pieces import Piece
from blendrun.data.prompts import TextTokenizer, prompt_tokens
from blendrun.data.rows import Rejections, RowBatch
from blendrun.data.sampling import SamplingParams
from blendrun.data.structures import STRUCTURE_TYPE

_OWN_PLACE = ("max_tokens", "n")  # `n` shows in how many requests a row has
REQUEST_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # input row over all sources in order, from 0
        ("sample", pa.int32()),  # which of the row's answers, from 0
        ("prompt_len", pa.int32()),  # tokens, at least 1
        ("max_tokens", pa.int32()),  # prompt_len + max_tokens fits the context
        ("expected_len", pa.int32()),  # output tokens by a column, 1..max_tokens, or null
        # rare parameters are null where not set
        *((name, kind.arrow) for name, kind in PARAM_KINDS.items() if name not in _OWN_PLACE),
        ("structure", STRUCTURE_TYPE),  # what the answer must look like
    ]
)
REJECTED_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("file", pa.string()),
        ("line", pa.int64()),  # physical line (JSONL) or row number (Parquet), from 1
        ("code", pa.string()),  # `data.rows.Code`
        ("message", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class WorkedRows:
    """The rows of one piece; `row` in both tables counts from the start of the piece."""

    path: str
    num_rows: int
    requests: pa.RecordBatch  # REQUEST_SCHEMA
    rejected: pa.RecordBatch  # REJECTED_SCHEMA
    prompts: FlatTokens  # of the requests
    kinds: KindTracker | None  # of JSON values


@dataclass(frozen=True, slots=True, eq=False)
class RowWork:
    """What it takes to make requests of rows; callable on a piece, in any process."""

    columns: ColumnNames
    tokenizer: TextTokenizer | None
    defaults: SamplingParams
    context_len: int  # prompt and answer tokens
    vocab_size: int

    def __call__(self, piece: Piece) -> WorkedRows:
        """The requests of a piece.

        Raises:
            InputError: a row holds text and there is no tokenizer.
        """
        batch = piece.rows(self.columns.used())
        rejections: Rejections = {row: ("bad_json", why) for row, why in batch.bad.items()}
        params = read_params(batch, self.columns, self.defaults, self.vocab_size, rejections)
        prompts = prompt_tokens(batch, self.columns, self.tokenizer, self.vocab_size, rejections)
        self._check_lengths(prompts.lengths, rejections)
        keep = np.ones(len(batch), bool)
        keep[list(rejections)] = False
        rows = np.flatnonzero(keep)
        counts = params.numbers["n"][rows]  # a request for each answer
        prompts = prompts.where(keep).repeated(counts)
        return WorkedRows(
            piece.path,
            len(batch),
            self._requests(np.repeat(rows, counts), prompts.lengths, params),
            _rejected(piece.path, batch, rejections),
            prompts,
            batch.kinds,
        )

    def _check_lengths(self, lengths: npt.NDArray[np.int64], rejections: Rejections) -> None:
        limit = self.context_len - 1
        for row in np.flatnonzero((lengths == 0) | (lengths > limit)).tolist():
            if row in rejections:
                continue
            if lengths[row] == 0:
                rejections[row] = ("empty_prompt", "the prompt has no tokens")
            else:
                rejections[row] = (
                    "context_length",
                    f"the prompt has {lengths[row]} tokens, the limit is {limit} "
                    f"(context of {self.context_len} less one for the answer)",
                )

    def _requests(
        self, rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], params: ParamColumns
    ) -> pa.RecordBatch:
        numbers = {field: values[rows] for field, values in params.numbers.items()}
        is_new = np.diff(rows, prepend=-1) > 0
        first = np.maximum.accumulate(np.where(is_new, np.arange(len(rows)), 0))
        room = self.context_len - lengths
        max_tokens = np.minimum(numbers.pop("max_tokens"), room).astype(np.int32)
        expected = params.expected_len[rows]
        columns = {
            "row": rows,
            "sample": np.arange(len(rows)) - first,
            "prompt_len": lengths.astype(np.int32),
            "max_tokens": max_tokens,
            "expected_len": pa.array(
                np.clip(expected, 1, np.maximum(max_tokens, 1)).astype(np.int32), mask=expected < 0
            ),
            **numbers,
            **{field: [values[row] for row in rows] for field, values in params.rare.items()},
        }
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(len(rows), field.type)
            for field in REQUEST_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=REQUEST_SCHEMA)


def _rejected(path: str, batch: RowBatch, rejections: Rejections) -> pa.RecordBatch:
    rows = sorted(rejections)
    columns = [
        rows,
        [path] * len(rows),
        [batch.lines[row] for row in rows],
        [rejections[row][0] for row in rows],
        [rejections[row][1] for row in rows],
    ]
    arrays = [pa.array(v, f.type) for v, f in zip(columns, REJECTED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECTED_SCHEMA)
