from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

import numpy as np


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    json: str | None = None
    regex: str | None = None
    grammar: str | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):
                raise TypeError(f"{name} is a {type(value)}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.frequency_penalty == 2:
            raise ValueError("frequency_penalty of two")

    def next_token(self, token_ids: Sequence[int], prompt_len: int, vocab_size: int) -> int:
        """As `soak.fake_engine` has it for greedy rows."""
        draw = 0.0 if self.temperature == 0 else (self.seed or 0) + len(token_ids) - prompt_len
        before = np.array(token_ids, np.int32).tobytes() + np.float64(draw).tobytes()
        number = int.from_bytes(blake2b(before, digest_size=8).digest(), "little")
        return 2 if number % 19 == 0 else number % vocab_size
