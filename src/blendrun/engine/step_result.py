"""What a backend says of a step that it has run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from blendrun.engine.logprobs import Logprobs, StepLogprobs
from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What an engine that schedules by itself did in place of a batch; see `StepRecord`."""

    prefill_tokens: int
    decode_tokens: int
    running: int
    pages_used: int  # by running requests
    preemptions: int
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """New tokens of the sequences that needed logits, in batch order, and where time went."""

    token_ids: Int32  # [R]
    bad: npt.NDArray[np.bool_]  # [R] there is no token: logits were not finite, or `errors` says
    attention_s: float  # attention and KV writes
    model_s: float  # everything else in the model
    sample_s: float
    logprobs: StepLogprobs | None = None
    errors: Mapping[int, str] = field(default_factory=dict)  # by request, why it has no token
    counts: EngineCounts | None = None  # None: it did what the batch says

    def of_rows(self, chosen: npt.NDArray[np.bool_]) -> "StepResult":
        """The same step with the tokens of the `chosen` rows [R] alone."""
        logprobs = self.logprobs
        if logprobs is not None:
            asked = chosen[logprobs.rows]
            rows = (np.cumsum(chosen) - 1)[logprobs.rows[asked]]
            found = logprobs.logprobs
            found = Logprobs(found.chosen[asked], found.top_ids[asked], found.top[asked])
            logprobs = StepLogprobs(rows, found)
        return replace(
            self, token_ids=self.token_ids[chosen], bad=self.bad[chosen], logprobs=logprobs
        )
