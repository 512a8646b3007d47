"""What the tests of the command line share: a job and what a command said."""

from collections.abc import Callable
from typing import NamedTuple

ROWS = [
    {"prompt": "the quick brown fox jumps", "max_tokens": 8},
    {"prompt": "the quick brown fox runs", "max_tokens": 3},
]
TOKEN_ROWS = [{"prompt_token_ids": [1, 2, i], "max_tokens": 4} for i in range(3)]


class Said(NamedTuple):
    code: int
    out: str
    err: str


Blendrun = Callable[..., Said]
