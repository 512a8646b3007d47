"""What a backend says of a step that it has run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blendrun.engine.logprobs import StepLogprobs
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
