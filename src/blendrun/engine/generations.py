"""What every running request has generated so far, and when it is over.

A request ends with a token of the end-of-sequence set (which stays in its token ids), at a stop
string (which is cut from its text) or at `max_tokens`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.data.tokenizer import PromptTokenizer
from blendrun.engine.requests import EngineRequests
from blendrun.tree.prefix_tree import Int32

NON_FINITE = "non_finite_logits: the model's output for this row is not a number"


@dataclass(frozen=True, slots=True)
class Generation:
    """The end of one request. `finish_reason` is None where `error` says why there is no answer."""

    request: int
    token_ids: list[int]
    text: str | None
    finish_reason: str | None
    error: str | None = None


class Generations:
    """Generated tokens of unfinished requests; they survive preemption here."""

    def __init__(
        self, requests: EngineRequests, eos_token_ids: tuple[int, ...], tokenizer: PromptTokenizer
    ) -> None:
        self._requests, self._tokenizer = requests, tokenizer
        self._eos = np.array(eos_token_ids, np.int32)
        self._tokens: dict[int, list[int]] = {}
        self._count = np.zeros(len(requests), np.int32)

    def tokens(self, request: int, start: int, end: int) -> Int32:
        """Known tokens at positions [start, end) of prompt and output together."""
        prompt = self._requests.prompt(request)
        if end <= len(prompt):
            return prompt[start:end]
        generated = np.array(self._tokens.get(request, ()), np.int32)
        return np.concatenate([prompt, generated])[start:end]

    def last_tokens(self, requests: Int32) -> Int32:
        """The newest generated token of each, for decoding."""
        return np.array([self._tokens[r][-1] for r in requests.tolist()], np.int32)

    def add(
        self, requests: Int32, token_ids: Int32, bad: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], list[Generation]]:
        """Take one new token of each request; which are over [S], and their generations."""
        columns = self._requests
        for request, token in zip(requests.tolist(), token_ids.tolist(), strict=True):
            self._tokens.setdefault(request, []).append(token)
        self._count[requests] += 1
        is_eos = np.isin(token_ids, self._eos) & ~columns.ignore_eos[requests]
        is_full = self._count[requests] >= columns.max_tokens[requests]
        over = is_eos | is_full | bad
        if columns.stop:
            for i in np.flatnonzero(~over):
                over[i] = self._stop_at(int(requests[i])) is not None
        ended = [
            self._end(int(requests[i]), bool(is_eos[i]), bool(bad[i])) for i in np.flatnonzero(over)
        ]
        return over, ended

    def _end(self, request: int, is_eos: bool, bad: bool) -> Generation:
        stop_at = self._stop_at(request)
        token_ids = self._tokens.pop(request)
        if bad:
            return Generation(request, [], None, None, NON_FINITE)
        text = self._tokenizer.decode(token_ids)
        if stop_at is not None:
            return Generation(request, token_ids, text[: text.find(stop_at)], "stop")
        return Generation(request, token_ids, text, "stop" if is_eos else "length")

    def _stop_at(self, request: int) -> str | None:
        """The stop string of a request that comes first in its text, if one does."""
        stops = self._requests.stop.get(request)
        if not stops:
            return None
        # a stop string ends in the newest token: no need to read further back than it is long
        reach = max(len(stop.encode()) for stop in stops) + 4
        tail = self._tokenizer.decode(self._tokens[request][-reach:])
        if not any(stop in tail for stop in stops):
            return None
        text = self._tokenizer.decode(self._tokens[request])
        found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
        return min(found)[2] if found else None
