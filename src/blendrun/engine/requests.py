"""Columns of a plan's requests as the engine reads them, by request number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.data.answer_keys import AnswerKeys
from blendrun.data.answers import answer_keys
from blendrun.data.content import as_bytes
from blendrun.data.param_kinds import RARE_PARAMS
from blendrun.data.scored_requests import NOT_SCORED
from blendrun.data.structures import Structure
from blendrun.schedule.lengths import is_known
from blendrun.schedule.plan_file import StoredPlan
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree

# penalties, and the value at which each changes nothing
PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@dataclass(frozen=True, slots=True)
class EngineRequests:
    """N requests; `sequence` is the planned order, everything else is by request number."""

    sequence: Int32  # [N]
    row: Int64  # [N] input row
    sample: Int32  # [N] which of the row's answers
    prompt_len: Int32
    max_tokens: Int32
    expected_output_len: Int32
    learned: npt.NDArray[np.bool_]  # its length may be learned during the run
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: Int32
    min_p: npt.NDArray[np.float32]
    seed: Int64
    draw_key: Int64  # what draws depend on beside the seed: prompt, parameters, which of equal rows
    ignore_eos: npt.NDArray[np.bool_]
    repetition_penalty: npt.NDArray[np.float32]
    presence_penalty: npt.NDArray[np.float32]
    frequency_penalty: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.int8]  # alternatives to each token; −1 = off
    prompt_logprobs: npt.NDArray[np.int8]
    score_start: Int32  # [N] tokens of the prompt from here on are scored; NOT_SCORED: none are
    # rare parameters: only of requests that have any
    stop: dict[int, tuple[str, ...]]
    stop_token_ids: dict[int, tuple[int, ...]]
    logit_bias: dict[int, tuple[tuple[int, float], ...]]
    structure: dict[int, Structure]
    has_stops: npt.NDArray[np.bool_]  # stop strings or tokens
    has_penalties: npt.NDArray[np.bool_]
    has_edits: npt.NDArray[np.bool_]  # penalties or a bias
    has_structure: npt.NDArray[np.bool_]
    prompts: tuple[Int32, Int64]  # tokens, offsets
    tree: PrefixTree
    seen: tuple[Int32, Int32]  # output lengths known before: requests alike, and tokens

    @classmethod
    def of(
        cls, stored: StoredPlan, ignore_eos: bool, keys: AnswerKeys | None = None
    ) -> "EngineRequests":
        """The requests of a plan; `keys` of the whole job, where that is more than this plan."""
        sequence = stored.requests["request"].to_numpy()
        table = stored.requests.take(np.argsort(sequence))
        column = {
            name: table[name].to_numpy()
            for name in table.column_names
            if name not in (*RARE_PARAMS, "content")
        }
        row, sample = column["row"], column["sample"]
        keys = keys or AnswerKeys.of(row, sample, as_bytes(table["content"]))
        rare = {name: _where_set(table[name]) for name in ("stop", "stop_token_ids", "logit_bias")}
        rare["structure"] = _where_set(table["structure"])
        has_stops, has_penalties, has_edits, has_structure = np.zeros((4, len(sequence)), np.bool_)
        has_stops[[*rare["stop"], *rare["stop_token_ids"]]] = True
        has_edits[[*rare["logit_bias"]]] = True
        has_structure[[*rare["structure"]]] = True
        for name, off in PENALTIES.items():
            has_penalties |= column[name] != off
        return cls(
            sequence=sequence,
            row=row,
            sample=sample,
            prompt_len=column["prompt_len"],
            max_tokens=column["max_tokens"],
            expected_output_len=column["expected_output_len"],
            learned=~(is_known(table) | ignore_eos),
            temperature=column["temperature"],
            top_p=column["top_p"],
            top_k=column["top_k"],
            min_p=column["min_p"],
            seed=column["seed"],
            draw_key=keys.draw_keys(answer_keys(row, sample)),
            ignore_eos=column["ignore_eos"] | ignore_eos,
            repetition_penalty=column["repetition_penalty"],
            presence_penalty=column["presence_penalty"],
            frequency_penalty=column["frequency_penalty"],
            logprobs=table["logprobs"].fill_null(-1).to_numpy(),
            prompt_logprobs=table["prompt_logprobs"].fill_null(-1).to_numpy(),
            score_start=table["score_start"].fill_null(NOT_SCORED).to_numpy(),
            stop=rare["stop"],
            stop_token_ids=rare["stop_token_ids"],
            logit_bias=rare["logit_bias"],
            structure=rare["structure"],
            has_stops=has_stops,
            has_penalties=has_penalties,
            has_edits=has_edits | has_penalties,
            has_structure=has_structure,
            prompts=(stored.store.tokens, stored.store.offsets),
            tree=stored.tree,
            seen=(stored.seen["request"].to_numpy(), stored.seen["output_len"].to_numpy()),
        )

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def is_scored(self) -> npt.NDArray[np.bool_]:
        """Which of them score a continuation instead of making an answer, [N]."""
        scored: npt.NDArray[np.bool_] = self.score_start != NOT_SCORED
        return scored

    @property
    def keys(self) -> Int64:
        """Of their answers, [N]."""
        return answer_keys(self.row, self.sample)

    def prompt(self, request: int) -> Int32:
        """Token ids of one prompt, as a view."""
        tokens, offsets = self.prompts
        return tokens[offsets[request] : offsets[request + 1]]


def _where_set(column: pa.ChunkedArray) -> dict[int, Any]:
    """The values of a rare parameter by request; equal ones are one object."""
    rows = np.flatnonzero(column.is_valid().to_numpy())
    values = (
        tuple(value.values() if isinstance(value, dict) else value)
        for value in column.drop_null().to_pylist()
    )
    known: dict[Any, Any] = {}
    return {
        row: known.setdefault(value, value)
        for row, value in zip(rows.tolist(), values, strict=True)
        if value
    }
