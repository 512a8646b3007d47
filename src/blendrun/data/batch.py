"""One batch of rows into requests, rejected rows and tokens.

Knows the limits of a request; not files or formats.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from blendrun.data.columns import ColumnNames
from blendrun.data.param_kinds import PARAM_KINDS
from blendrun.data.params import ParamColumns, read_params
from blendrun.data.prompts import TextTokenizer, TokenIds, prompt_tokens
from blendrun.data.rows import Rejections, RowBatch
from blendrun.data.sampling import SamplingParams
from blendrun.data.structures import STRUCTURE_TYPE
from blendrun.data.token_store import TokenStoreWriter

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


class BatchIngester:
    """Takes batches in input order; collects columns, and sends tokens to the store.

    Raises:
        InputError: `defaults` name a token that the vocabulary does not have.
    """

    def __init__(
        self,
        columns: ColumnNames,
        tokenizer: TextTokenizer | None,
        defaults: SamplingParams,
        context_len: int,
        vocab_size: int,
        writer: TokenStoreWriter,
    ) -> None:
        defaults.validate(vocab_size)
        self._columns = columns
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._context_len = context_len
        self._vocab_size = vocab_size
        self._writer = writer
        self.num_rows = 0  # rows taken so far, accepted or not
        self.requests: list[pa.RecordBatch] = []
        self.rejected: list[pa.RecordBatch] = []

    def add(self, path: str, batch: RowBatch) -> None:
        """Adds the rows of a batch of the file `path`.

        Raises:
            InputError: a row holds text and there is no tokenizer.
        """
        rejections: Rejections = {row: ("bad_json", why) for row, why in batch.bad.items()}
        params = read_params(batch, self._columns, self._defaults, self._vocab_size, rejections)
        tokens = prompt_tokens(batch, self._columns, self._tokenizer, self._vocab_size, rejections)
        self._check_lengths(tokens, rejections)
        accepted = np.array([row for row in range(len(batch)) if row not in rejections], np.int64)
        accepted = np.repeat(accepted, params.numbers["n"][accepted])  # a request for each answer
        prompts = [tokens[row] for row in accepted.tolist()]
        self._writer.append(prompts)
        if len(accepted):
            self.requests.append(self._request_batch(accepted, prompts, params))
        if rejections:
            self.rejected.append(self._rejected_batch(path, batch, rejections))
        self.num_rows += len(batch)

    def _check_lengths(self, tokens: dict[int, TokenIds], rejections: Rejections) -> None:
        limit = self._context_len - 1
        for row, ids in tokens.items():
            if len(ids) == 0:
                rejections[row] = ("empty_prompt", "the prompt has no tokens")
            elif len(ids) > limit:
                rejections[row] = (
                    "context_length",
                    f"the prompt has {len(ids)} tokens, the limit is {limit} "
                    f"(context of {self._context_len} less one for the answer)",
                )

    def _request_batch(
        self, accepted: Any, prompts: list[TokenIds], params: ParamColumns
    ) -> pa.RecordBatch:
        prompt_len = np.array([len(ids) for ids in prompts], np.int32)
        numbers = {field: values[accepted] for field, values in params.numbers.items()}
        new_row = np.diff(accepted, prepend=-1) > 0
        first = np.maximum.accumulate(np.where(new_row, np.arange(len(accepted)), 0))
        room = self._context_len - prompt_len
        max_tokens = np.minimum(numbers.pop("max_tokens"), room).astype(np.int32)
        expected = params.expected_len[accepted]
        columns = {
            "row": self.num_rows + accepted,
            "sample": np.arange(len(accepted)) - first,
            "prompt_len": prompt_len,
            "max_tokens": max_tokens,
            "expected_len": pa.array(
                np.clip(expected, 1, np.maximum(max_tokens, 1)).astype(np.int32), mask=expected < 0
            ),
            **numbers,
            **{field: [values[row] for row in accepted] for field, values in params.rare.items()},
        }
        return pa.RecordBatch.from_arrays(
            [
                pa.array(columns[field.name], field.type)
                if field.name in columns
                else pa.nulls(len(accepted), field.type)
                for field in REQUEST_SCHEMA
            ],
            schema=REQUEST_SCHEMA,
        )

    def _rejected_batch(self, path: str, batch: RowBatch, rejections: Rejections) -> pa.RecordBatch:
        rows = sorted(rejections)
        columns = [
            [self.num_rows + row for row in rows],
            [path] * len(rows),
            [batch.lines[row] for row in rows],
            [rejections[row][0] for row in rows],
            [rejections[row][1] for row in rows],
        ]
        arrays = [pa.array(v, f.type) for v, f in zip(columns, REJECTED_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=REJECTED_SCHEMA)
