"""The table of answers: one row per finished request, the same in memory and on disk.

Knows the columns, not where parts lie or how a request was run.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.scores import SCORE_COLUMNS, SCORE_FIELDS, Score, score_columns
from blendrun.data.token_logprobs import CHOSEN_TYPE, TOP_TYPE, TokenLogprobs, logprob_columns

ANSWER_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # input row over all sources, from 0
        pa.field("output_index", pa.int32(), nullable=False),  # which of the row's answers, from 0
        pa.field("status", pa.string(), nullable=False),  # "ok" or "error"
        pa.field("output_text", pa.string()),
        pa.field("output_reasoning", pa.string()),  # null where the model marks none
        pa.field("output_token_ids", pa.list_(pa.int32())),
        pa.field("finish_reason", pa.string()),  # "stop", "length" or null
        pa.field("stop_reason", pa.string()),  # stop string or number of the stop token, or null
        pa.field("num_prompt_tokens", pa.int32()),
        pa.field("num_cached_tokens", pa.int32()),
        pa.field("num_output_tokens", pa.int32()),
        pa.field("output_logprobs", CHOSEN_TYPE),  # null where not asked for, as the next three
        pa.field("output_top_logprobs", TOP_TYPE),
        pa.field("prompt_token_logprobs", CHOSEN_TYPE),
        pa.field("prompt_top_logprobs", TOP_TYPE),
        *SCORE_FIELDS,  # of a continuation: lists of one, and of all of a row in the outputs
        pa.field("error", pa.string()),  # "code: message", null where status is "ok"
    ]
)
MOST_ANSWERS = 2**14  # of one row
INDEX_COLUMN = "output_index"
# only in the outputs of a job in which some row asks for them, or the model marks reasoning
RARE_OUTPUT_COLUMNS = (
    INDEX_COLUMN,
    "output_reasoning",
    "output_logprobs",
    "output_top_logprobs",
    "prompt_token_logprobs",
    "prompt_top_logprobs",
    *SCORE_COLUMNS,
)
PLAIN_OUTPUT_COLUMNS = (
    "output_text",
    "output_token_ids",
    "finish_reason",
    "stop_reason",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_output_tokens",
    "status",
    "error",
)
OUTPUT_COLUMNS = (*PLAIN_OUTPUT_COLUMNS, *RARE_OUTPUT_COLUMNS)


def answers_table(
    *,
    row: Sequence[int] | npt.NDArray[np.int64],
    output_text: Sequence[str | None],
    output_token_ids: Sequence[npt.NDArray[np.int32] | Sequence[int]],
    finish_reason: Sequence[str | None],
    num_prompt_tokens: Sequence[int] | npt.NDArray[np.int32],
    num_cached_tokens: Sequence[int] | npt.NDArray[np.int32],
    error: Sequence[str | None] | None = None,
    output_index: Sequence[int] | npt.NDArray[np.int32] | None = None,
    stop_reason: Sequence[str | None] | None = None,
    output_logprobs: Sequence[TokenLogprobs | None] | None = None,
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None,
    score: Sequence[Score | None] | None = None,
    output_reasoning: Sequence[str | None] | None = None,
) -> pa.Table:
    """Answers from columns of equal length; `status` and `num_output_tokens` follow from them."""
    errors = [None] * len(row) if error is None else list(error)
    token_ids = [np.asarray(ids, dtype=np.int32) for ids in output_token_ids]
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int32)
    nothing = [None] * len(row)
    of_output = logprob_columns(nothing if output_logprobs is None else output_logprobs)
    of_prompt = logprob_columns(nothing if prompt_logprobs is None else prompt_logprobs)
    columns = {
        "row": row,
        "output_index": np.zeros(len(row), np.int32) if output_index is None else output_index,
        "status": ["ok" if reason is None else "error" for reason in errors],
        "output_text": output_text,
        "output_reasoning": nothing if output_reasoning is None else output_reasoning,
        "output_token_ids": pa.array(token_ids, pa.list_(pa.int32())),
        "finish_reason": finish_reason,
        "stop_reason": nothing if stop_reason is None else stop_reason,
        "num_prompt_tokens": num_prompt_tokens,
        "num_cached_tokens": num_cached_tokens,
        "num_output_tokens": lengths,
        "output_logprobs": of_output[0],
        "output_top_logprobs": of_output[1],
        "prompt_token_logprobs": of_prompt[0],
        "prompt_top_logprobs": of_prompt[1],
        **score_columns(nothing if score is None else score),
        "error": errors,
    }
    return pa.table(columns, schema=ANSWER_SCHEMA)


def answer_keys(
    row: npt.NDArray[np.int64], index: npt.NDArray[np.int32] | int
) -> npt.NDArray[np.int64]:
    """One number for each answer, in the order of rows and of the answers of a row."""
    return row * MOST_ANSWERS + index


def rejected_answers(rejected: pa.Table) -> pa.Table:
    """The rows that ingest set aside, as answers with status `error` and nulls elsewhere."""
    names = ["code", "message", "file", "line"]
    reasons = zip(*(rejected[name].to_pylist() for name in names), strict=True)
    columns = [pa.nulls(rejected.num_rows, field.type) for field in ANSWER_SCHEMA]
    columns[0] = rejected["row"].combine_chunks()
    columns[1] = pa.array(np.zeros(rejected.num_rows, np.int32))
    columns[2] = pa.array(["error"] * rejected.num_rows, pa.string())
    columns[-1] = pa.array([_reason(*reason) for reason in reasons], pa.string())
    return pa.Table.from_arrays(columns, schema=ANSWER_SCHEMA)


def _reason(code: str, message: str, file: str, line: int) -> str:
    """The error of a row; with the place of one that has no columns to know it by."""
    return f"{code}: {file}, line {line}: {message}" if code == "bad_json" else f"{code}: {message}"
