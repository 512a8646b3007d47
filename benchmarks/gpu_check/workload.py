"""A job of token ids: mixed lengths and shared prefixes, as of three uses of a model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class Use:
    """Requests of one kind; lengths in tokens, own ones and outputs between two numbers."""

    share: float  # of the job
    prefixes: int  # so many, each shared by its part of the requests
    prefix_len: int
    own_len: tuple[int, int]
    output_len: tuple[int, int]


USES = (
    Use(0.35, 6, 256, (500, 1500), (16, 64)),  # summaries: compute
    Use(0.40, 20, 64, (30, 150), (150, 400)),  # chats: memory
    Use(0.25, 2, 1000, (40, 120), (2, 10)),  # few-shot evaluation: shared compute
)


def write_job(path: Path, num_requests: int, length_frac: float, vocab_size: int) -> None:
    """Parquet with `prompt_token_ids` and `max_tokens`, in random order; the same every time."""
    rng = np.random.default_rng(0)

    def scaled(length: int) -> int:
        return max(round(length * length_frac), 1)

    prompts: list[np.ndarray] = []
    outputs: list[int] = []
    for use in USES:
        prefixes = rng.integers(0, vocab_size, (use.prefixes, scaled(use.prefix_len)), np.int32)
        for number in range(max(round(num_requests * use.share), 1)):
            own = scaled(int(rng.integers(*use.own_len)))
            tail = rng.integers(0, vocab_size, own, np.int32)
            prompts.append(np.concatenate([prefixes[number % use.prefixes], tail]))
            outputs.append(scaled(int(rng.integers(*use.output_len))) + 1)
    order = rng.permutation(len(prompts))
    table = {
        "prompt_token_ids": [prompts[i] for i in order],
        "max_tokens": [outputs[i] for i in order],
    }
    pq.write_table(pa.table(table), path)
