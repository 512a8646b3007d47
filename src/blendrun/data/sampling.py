"""How the tokens of one request are drawn.

Knows the parameters and their ranges, not how a sampler applies them.
"""

import math
from dataclasses import dataclass

from blendrun.data.answers import MOST_ANSWERS
from blendrun.data.structures import Structure
from blendrun.errors import InputError

MOST_LOGPROBS = 20  # as OpenAI documents it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request; as a job's defaults, those of every row that sets none."""

    max_tokens: int = 256
    temperature: float = 0.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    min_p: float = 0.0
    seed: int = 0  # draws depend on (seed, content of the row, sample, position)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0  # 1 = off; over prompt and output
    presence_penalty: float = 0.0  # over the output, once per token
    frequency_penalty: float = 0.0  # over the output, each time
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    logprobs: int | None = None  # best alternatives to each token of the answer; None = off
    prompt_logprobs: int | None = None  # likewise of the prompt
    n: int = 1  # answers
    structure: Structure | None = None  # what answers must look like

    def validate(self, vocab_size: int | None = None) -> None:
        """Raises InputError that names the first parameter out of its range.

        Token ids are held against `vocab_size` where it is known.
        """
        vocab = 2**31 if vocab_size is None else vocab_size
        problems = (
            (self.max_tokens >= 0, "max_tokens must be 0 or above"),
            (self.max_tokens < 2**31, "max_tokens must be below 2147483648"),
            (
                math.isfinite(self.temperature) and 0 <= self.temperature < 3e38,
                "temperature must be 0 or above",
            ),
            (1e-30 <= self.top_p <= 1, "top_p must be above 0 and at most 1"),
            (0 <= self.top_k < 2**31, "top_k must be 0 (off) or above"),
            (0 <= self.min_p <= 1, "min_p must be between 0 and 1"),
            (-(2**63) <= self.seed < 2**63, "seed must fit 64 bits"),
            (all(self.stop), "a stop string must not be empty"),
            (
                all(0 <= token < vocab for token in self.stop_token_ids),
                f"stop_token_ids must lie in the vocabulary (0 to {vocab - 1})",
            ),
            (
                1e-6 <= self.repetition_penalty <= 1e6,
                "repetition_penalty must be above 0 (1 is off)",
            ),
            (-2 <= self.presence_penalty <= 2, "presence_penalty must be between -2 and 2"),
            (-2 <= self.frequency_penalty <= 2, "frequency_penalty must be between -2 and 2"),
            (
                all(0 <= token < vocab for token, _ in self.logit_bias),
                f"logit_bias must name tokens of the vocabulary (0 to {vocab - 1})",
            ),
            (0 <= (self.logprobs or 0) <= MOST_LOGPROBS, f"logprobs must be 0 to {MOST_LOGPROBS}"),
            (
                0 <= (self.prompt_logprobs or 0) <= MOST_LOGPROBS,
                f"prompt_logprobs must be 0 to {MOST_LOGPROBS}",
            ),
            (1 <= self.n <= MOST_ANSWERS, f"n must be 1 to {MOST_ANSWERS}"),
        )
        for good, message in problems:
            if not good:
                raise InputError(message)
