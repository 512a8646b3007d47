"""From a piece of rows to requests, rejected rows and tokens: the work that runs in parallel.

Knows the limits of a request; not where rows come from or where tokens go. Rows are counted from
the start of the piece.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.columns import ColumnNames
from blendrun.data.content import CONTENT_BYTES, as_binary, content_hashes
from blendrun.data.continuations import longest, read_continuations
from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.input_options import InputOptions
from blendrun.data.notes import Notes
from blendrun.data.openai_batch import batch_requests, is_model
from blendrun.data.param_kinds import PARAM_KINDS
from blendrun.data.params import ParamColumns, read_params
from blendrun.data.pieces import Piece
from blendrun.data.prompt_template import with_prompts
from blendrun.data.prompts import TextTokenizer, prompt_tokens
from blendrun.data.rows import Rejections, RowBatch
from blendrun.data.sampling import SamplingParams
from blendrun.data.scored_requests import ScoredRequests
from blendrun.data.structures import STRUCTURE_TYPE
from blendrun.data.truncation import cut_prompts
from blendrun.data.worked_rows import WorkedRows, rejected_rows

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
        ("content", pa.binary(CONTENT_BYTES)),  # hash of the prompt and the parameters
        ("score_start", pa.int32()),  # tokens of the prompt from here on are scored, or null
    ]
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
        adapt = batch_requests(self.columns, self.options.format)
        batch = piece.rows(self.columns.used(), adapt)
        rejections: Rejections = dict(batch.bad)
        notes = self._notes(batch, rejections)
        if self.options.template is not None:
            name = self.columns.prompt
            batch = with_prompts(self.options.template, name, batch, rejections)
        params = read_params(batch, self.columns, self.defaults, self.vocab_size, rejections)
        asked = read_continuations(batch, self.columns, self.vocab_size, rejections)
        prompts, continuations = prompt_tokens(
            batch, self.columns, self.tokenizer, self.vocab_size, rejections, asked
        )
        score_len = longest(continuations, len(batch))
        if self.options.truncate is not None:
            bos_id = self.tokenizer.bos_id if self.tokenizer else None
            prompts, cut = cut_prompts(
                prompts,
                self.context_len,
                params.numbers["max_tokens"],
                score_len,
                self.options.truncate,
                bos_id,
            )
            notes.add("truncated", count=len(set(cut.tolist()) - rejections.keys()))
        self._check_lengths(prompts.lengths, score_len, rejections)
        keep = np.ones(len(batch), bool)
        keep[list(rejections)] = False
        rows = np.flatnonzero(keep)
        scores = ScoredRequests.of(rows, params.numbers["n"], prompts.lengths, continuations)
        prompts = prompts.where(keep).repeated(scores.counts).followed_by(scores.ends)
        ids, custom_ids = self._ids(batch), batch.custom_ids()
        return WorkedRows(
            piece.path,
            len(batch),
            batch.lines,
            self._requests(np.repeat(rows, scores.counts), prompts, params, scores),
            rejected_rows(piece.path, batch.lines, rejections, dict([*ids, *custom_ids])),
            prompts,
            batch.kinds,
            notes,
            ids,
            custom_ids,
        )

    def _notes(self, batch: RowBatch, rejections: Rejections) -> Notes:
        """What to tell of rows that are read otherwise than they stand; adds to `rejections`."""
        notes = Notes()
        for row in sorted(batch.mended - rejections.keys()):
            if self.options.bad_unicode == "replace":
                notes.add("mended")
            else:
                rejections[row] = ("bad_json", "half of a surrogate pair, which no text can hold")
        for request in batch.requests.values():
            if request.model is not None and not is_model(request.model, self.options.model):
                notes.add("other_model", request.model)
        return notes

    def _ids(self, batch: RowBatch) -> list[tuple[int, str]]:
        """Rows with an id in the column that was named for ids."""
        column = () if self.columns.id is None else batch.columns.get(self.columns.id, ())
        return [(row, str(value)) for row, value in enumerate(column) if value is not None]

    def _check_lengths(
        self,
        lengths: npt.NDArray[np.int64],
        score_len: npt.NDArray[np.int64],
        rejections: Rejections,
    ) -> None:
        limit = self.context_len - 1
        is_long = lengths + np.maximum(score_len, 1) > self.context_len
        for row in np.flatnonzero((lengths == 0) | is_long).tolist():
            if row in rejections:
                continue
            if lengths[row] == 0:
                rejections[row] = ("empty_prompt", "the prompt has no tokens")
            elif score_len[row]:
                rejections[row] = (
                    "context_length",
                    f"the prompt has {lengths[row]} tokens and its longest continuation "
                    f"{score_len[row]}, the context is {self.context_len}",
                )
            else:
                rejections[row] = (
                    "context_length",
                    f"the prompt has {lengths[row]} tokens, the limit is {limit} "
                    f"(context of {self.context_len} less one for the answer)",
                )

    def _requests(
        self,
        rows: npt.NDArray[np.int64],
        prompts: FlatTokens,
        params: ParamColumns,
        scores: ScoredRequests,
    ) -> pa.RecordBatch:
        numbers, rare = scores.numbers(params, rows), scores.rare(params, rows)
        is_new = np.diff(rows, prepend=-1) > 0
        first = np.maximum.accumulate(np.where(is_new, np.arange(len(rows)), 0))
        lengths = prompts.lengths
        max_tokens = np.minimum(numbers["max_tokens"], self.context_len - lengths).astype(np.int32)
        numbers["max_tokens"] = max_tokens
        expected = params.expected_len[rows]
        columns = {
            "row": rows,
            "sample": np.arange(len(rows)) - first,
            "prompt_len": lengths.astype(np.int32),
            "expected_len": pa.array(
                np.clip(expected, 1, np.maximum(max_tokens, 1)).astype(np.int32), mask=expected < 0
            ),
            "content": as_binary(content_hashes(numbers, rare, prompts)),
            **numbers,
            **rare,
        }
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(len(rows), field.type)
            for field in REQUEST_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=REQUEST_SCHEMA)
