"""From a piece of rows to requests, rejected rows and tokens: the work that runs in parallel.

Knows the limits of a request; not where rows come from or where tokens go. Rows are counted from
the start of the piece.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.columns import ColumnNames
from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.input_options import InputOptions
from blendrun.data.json_kinds import KindTracker
from blendrun.data.notes import Notes
from blendrun.data.openai_batch import is_request, request_of
from blendrun.data.params import ParamColumns, read_params
from blendrun.data.pieces import Piece
from blendrun.data.prompt_template import with_prompts
from blendrun.data.prompts import TextTokenizer, prompt_tokens
from blendrun.data.rows import BatchRequest, Code, Rejections, RowBatch
from blendrun.data.sampling import SamplingParams
from blendrun.data.truncation import cut_prompts

REQUEST_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # input row over all sources in order, from 0
        ("prompt_len", pa.int32()),  # tokens, at least 1
        ("max_tokens", pa.int32()),  # prompt_len + max_tokens fits the context
        ("expected_len", pa.int32()),  # output tokens by a column, 1..max_tokens, or null
        ("temperature", pa.float32()),
        ("top_p", pa.float32()),
        ("top_k", pa.int32()),
        ("min_p", pa.float32()),
        ("seed", pa.int64()),
        ("stop", pa.list_(pa.string())),
        ("ignore_eos", pa.bool_()),
    ]
)
REJECTED_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("file", pa.string()),
        ("line", pa.int64()),  # physical line (JSONL) or row number (Parquet), from 1
        ("code", pa.string()),  # `data.rows.Code`
        ("message", pa.string()),
        ("id", pa.string()),  # of the id column or of the batch request, where there is one
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class WorkedRows:
    """The rows of one piece; `row` in both tables counts from the start of the piece."""

    path: str
    num_rows: int
    lines: Sequence[int]  # of all rows
    requests: pa.RecordBatch  # REQUEST_SCHEMA
    rejected: pa.RecordBatch  # REJECTED_SCHEMA
    prompts: FlatTokens  # of the requests
    kinds: KindTracker | None  # of JSON values
    notes: Notes
    ids: Sequence[tuple[int, str]] = ()  # row and id, where an id column is named
    custom_ids: Sequence[tuple[int, str]] = ()  # likewise of batch requests

    def without(self, repeated: Collection[int], reason: tuple[Code, str]) -> Self:
        """The same with those of the requests `repeated` rejected."""
        rows = self.requests["row"].to_numpy()
        keep = ~np.isin(rows, list(repeated))
        gone: Rejections = dict.fromkeys(rows[~keep].tolist(), reason)
        rejected = _rejected(self.path, self.lines, gone, dict([*self.ids, *self.custom_ids]))
        table = pa.Table.from_batches([self.rejected, rejected]).sort_by("row").combine_chunks()
        return replace(
            self,
            requests=self.requests.filter(pa.array(keep)),
            rejected=next(iter(table.to_batches()), self.rejected),
            prompts=self.prompts.where(keep),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowWork:
    """What it takes to make requests of rows; callable on a piece, in any process."""

    columns: ColumnNames
    tokenizer: TextTokenizer | None
    defaults: SamplingParams
    context_len: int  # prompt and answer tokens
    vocab_size: int
    options: InputOptions

    def __call__(self, piece: Piece) -> WorkedRows:
        """The requests of a piece.

        Raises:
            InputError: a row holds text and there is no tokenizer.
        """
        batch = piece.rows(self.columns.used(), self._batch_request)
        rejections: Rejections = dict(batch.bad)
        notes = self._notes(batch, rejections)
        if self.options.template is not None:
            name = self.columns.prompt
            batch = with_prompts(self.options.template, name, batch, rejections)
        params = read_params(batch, self.columns, self.defaults, rejections)
        prompts = prompt_tokens(batch, self.columns, self.tokenizer, self.vocab_size, rejections)
        if self.options.truncate is not None:
            bos_id = self.tokenizer.bos_id if self.tokenizer else None
            prompts, cut = cut_prompts(
                prompts,
                self.context_len,
                params.numbers["max_tokens"],
                self.options.truncate,
                bos_id,
            )
            notes.add("truncated", count=len(cut))
        self._check_lengths(prompts.lengths, rejections)
        keep = np.ones(len(batch), bool)
        keep[list(rejections)] = False
        prompts = prompts.where(keep)
        ids, custom_ids = self._ids(batch)
        return WorkedRows(
            piece.path,
            len(batch),
            batch.lines,
            self._requests(np.flatnonzero(keep), prompts.lengths, params),
            _rejected(piece.path, batch.lines, rejections, dict([*ids, *custom_ids])),
            prompts,
            batch.kinds,
            notes,
            ids,
            custom_ids,
        )

    def _batch_request(self, row: Mapping[str, Any]) -> BatchRequest | None:
        """The row as a request of a batch file, where it is one."""
        chosen = self.options.format
        if chosen == "openai" or (chosen == "auto" and is_request(row.keys(), self.columns)):
            return request_of(row, self.columns)
        return None

    def _notes(self, batch: RowBatch, rejections: Rejections) -> Notes:
        """What to tell of rows that are read otherwise than they stand; adds to `rejections`."""
        notes = Notes()
        for row in sorted(batch.mended - rejections.keys()):
            if self.options.bad_unicode == "replace":
                notes.add("mended")
            else:
                rejections[row] = ("bad_json", "half of a surrogate pair, which no text can hold")
        for request in batch.requests.values():
            if request.model not in (None, self.options.model):
                notes.add("other_model", str(request.model))
        return notes

    def _ids(self, batch: RowBatch) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Rows with the ids of a named column, and those of batch requests."""
        column = () if self.columns.id is None else batch.columns.get(self.columns.id, ())
        ids = [(row, str(value)) for row, value in enumerate(column) if value is not None]
        custom = [
            (row, request.custom_id)
            for row, request in batch.requests.items()
            if request.custom_id is not None
        ]
        return ids, custom

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
        room = self.context_len - lengths
        max_tokens = np.minimum(numbers.pop("max_tokens"), room).astype(np.int32)
        expected = params.expected_len[rows]
        columns = {
            "row": rows,
            "prompt_len": lengths.astype(np.int32),
            "max_tokens": max_tokens,
            "expected_len": pa.array(
                np.clip(expected, 1, max_tokens).astype(np.int32), mask=expected < 0
            ),
            "stop": pa.array([params.stop[row] for row in rows], pa.list_(pa.string())),
            **numbers,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in REQUEST_SCHEMA],
            schema=REQUEST_SCHEMA,
        )


def _rejected(
    path: str, lines: Sequence[int], rejections: Rejections, ids: Mapping[int, str]
) -> pa.RecordBatch:
    rows = sorted(rejections)
    shown = os.fsencode(path).decode("utf-8", "replace")  # also of a name that is not UTF-8
    columns = [
        rows,
        [shown] * len(rows),
        [lines[row] for row in rows],
        [rejections[row][0] for row in rows],
        [rejections[row][1] for row in rows],
        [ids.get(row) for row in rows],
    ]
    arrays = [pa.array(v, f.type) for v, f in zip(columns, REJECTED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECTED_SCHEMA)
