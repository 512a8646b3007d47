"""Log-probabilities as vLLM gives them, as those of the native engine.

vLLM says for each token what the chosen one has, and the best ones with their ranks from 1 on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blendrun.data.scored_requests import NOT_SCORED
from blendrun.data.scores import Score
from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.logprobs import Logprobs, StepLogprobs
from blendrun.engine.requests import EngineRequests
from blendrun.tree.prefix_tree import Int32

Position = Mapping[int, Any]  # vLLM's: token id → an object with `logprob` and `rank`


def token_logprobs(
    tokens: Sequence[int], positions: Sequence[Position | None], k: int
) -> TokenLogprobs:
    """Of `tokens`, with the `k` best at each place; a place that is None has none."""
    chosen = np.full(len(tokens), np.nan, np.float32)
    top_ids = np.zeros((len(tokens), k), np.int32)
    top = np.zeros((len(tokens), k), np.float32)
    for i, (token, known) in enumerate(zip(tokens, positions, strict=True)):
        if known is None:
            continue
        chosen[i] = known[token].logprob
        best = [item for item in known.items() if item[1].rank <= k]
        best.sort(key=lambda item: item[1].rank)
        for j, (other, value) in enumerate(best[:k]):
            top_ids[i, j], top[i, j] = other, value.logprob
    return TokenLogprobs(chosen, top_ids, top)


def step_logprobs(
    requests: EngineRequests, asked: Int32, tokens: Int32, positions: Sequence[Position | None]
) -> StepLogprobs | None:
    """Of the new `tokens` of the requests `asked` [R]; None where none of them asks."""
    rows = np.flatnonzero([position is not None for position in positions])
    if not len(rows):
        return None
    k = int(requests.logprobs[asked[rows]].max())
    found = token_logprobs(tokens[rows].tolist(), [positions[row] for row in rows.tolist()], k)
    return StepLogprobs(rows, Logprobs(found.chosen, found.top_ids, found.top))


class VllmScores:
    """Log-probabilities of prompts, kept from the first token of a request to its end."""

    def __init__(self, requests: EngineRequests) -> None:
        self._requests = requests
        self._known: dict[int, list[Position | None]] = {}

    def keep(self, request: int, positions: Sequence[Position | None]) -> None:
        """Of the next tokens of what vLLM took for the prompt of `request`."""
        self._known.setdefault(request, []).extend(positions)

    def take(self, request: int) -> TokenLogprobs | None:
        """Those of the prompt of a request that ends, if it asks."""
        k = int(self._requests.prompt_logprobs[request])
        return None if k < 0 else self._of(request, 0, k)

    def take_score(self, request: int) -> Score | None:
        """Those of the continuation of a request that ends, if it has one."""
        start = int(self._requests.score_start[request])
        if start == NOT_SCORED:
            return None
        found = self._of(request, start, 1)
        is_greedy = bool((found.chosen >= found.top[:, 0]).all())
        return Score(float(found.chosen.sum(dtype=np.float64)), len(found.chosen), is_greedy)

    def forget(self, request: int) -> None:
        self._known.pop(request, None)

    def _of(self, request: int, start: int, k: int) -> TokenLogprobs:
        tokens = self._requests.prompt(request)[start:].tolist()
        return token_logprobs(tokens, self._known[request][start : start + len(tokens)], k)
