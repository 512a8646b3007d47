"""How the tokens of one request are drawn.

Knows the parameters and their ranges, not how a sampler applies them.
"""

import math
from dataclasses import dataclass

from blendrun.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request; as a job's defaults, those of every row that sets none."""

    max_tokens: int = 256
    temperature: float = 0.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    min_p: float = 0.0
    seed: int = 0  # draws depend on (seed, row, sample, position)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def validate(self) -> None:
        """Raises InputError that names the first parameter out of its range."""
        problems = (
            (self.max_tokens >= 1, "max_tokens must be at least 1"),
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
        )
        for good, message in problems:
            if not good:
                raise InputError(message)
