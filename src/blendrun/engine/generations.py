"""What every running request has generated so far, and when it is over.

A request ends with a token of the end-of-sequence set or one of its own stop tokens (which stay in
its token ids, not in its text), at a stop string (which is cut from its text) or at `max_tokens`.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.logprobs import Float32, Logprobs, StepLogprobs
from blendrun.engine.requests import EngineRequests
from blendrun.engine.stop_strings import Stopped, StopSearch
from blendrun.engine.token_counts import TokenCounts
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
    stop_reason: str | None = None  # the stop string, or the stop token's number
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None
    is_copy: bool = False  # of another request's answer


_TokenLogprob = tuple[float, Int32, Float32]  # chosen, alternatives [k] and theirs


@dataclass(slots=True)
class _Answer:
    """One that grows."""

    token_ids: list[int] = field(default_factory=list)
    stops: StopSearch | None = None
    counts: TokenCounts | None = None
    logprobs: list[_TokenLogprob] = field(default_factory=list)


class Generations:
    """Generated tokens of unfinished requests; they survive preemption here."""

    def __init__(
        self, requests: EngineRequests, eos_token_ids: tuple[int, ...], detokenizer: Detokenizer
    ) -> None:
        self._requests, self._detokenizer = requests, detokenizer
        self._eos = np.array(eos_token_ids, np.int32)
        self._answers: dict[int, _Answer] = {}
        self._count = np.zeros(len(requests), np.int32)

    def tokens(self, request: int, start: int, end: int) -> Int32:
        """Known tokens at positions [start, end) of prompt and output together."""
        prompt = self._requests.prompt(request)
        if end <= len(prompt):
            return prompt[start:end]
        generated = np.array(self._answers[request].token_ids, np.int32)
        return np.concatenate([prompt, generated])[start:end]

    def last_tokens(self, requests: Int32) -> Int32:
        """The newest generated token of each, for decoding."""
        return np.array([self._answers[r].token_ids[-1] for r in requests.tolist()], np.int32)

    def token_counts(self, request: int) -> TokenCounts:
        """The tokens of its answer so far; with a repetition penalty also those of its prompt."""
        answer = self._answers.get(request)
        if answer is None:
            answer = self._answers[request] = self._begin(request)
        if answer.counts is None:
            repetition = self._requests.repetition_penalty[request] != 1
            answer.counts = TokenCounts(self._requests.prompt(request) if repetition else ())
        answer.counts.catch_up(answer.token_ids)
        return answer.counts

    def add(
        self,
        requests: Int32,
        token_ids: Int32,
        bad: npt.NDArray[np.bool_],
        logprobs: StepLogprobs | None = None,
    ) -> tuple[npt.NDArray[np.bool_], list[Generation]]:
        """Take one new token of each request; which are over [S], and their generations."""
        columns = self._requests
        for request, token in zip(requests.tolist(), token_ids.tolist(), strict=True):
            answer = self._answers.get(request)
            if answer is None:
                answer = self._answers[request] = self._begin(request)
            answer.token_ids.append(token)
        if logprobs is not None:
            self._note(requests[logprobs.rows], logprobs.logprobs)
        self._count[requests] += 1
        is_eos = np.isin(token_ids, self._eos) & ~columns.ignore_eos[requests]
        is_full = self._count[requests] >= columns.max_tokens[requests]
        over = is_eos | is_full | bad
        stopped: dict[int, str | Stopped] = {}
        for i in np.flatnonzero(columns.has_stops[requests] & ~is_eos & ~bad).tolist():
            found = self._stop_at(int(requests[i]), int(token_ids[i]))
            if found is not None:
                over[i], stopped[i] = True, found
        ended = []
        for i in np.flatnonzero(over).tolist():
            request = int(requests[i])
            ended.append(
                self._failed(request)
                if bad[i]
                else self._ended(request, bool(is_eos[i]), stopped.get(i))
            )
        return over, ended

    def _begin(self, request: int) -> _Answer:
        stops = self._requests.stop.get(request)
        return _Answer(stops=StopSearch(stops, self._detokenizer) if stops else None)

    def _note(self, requests: Int32, found: Logprobs) -> None:
        """Log-probabilities of the newest tokens of `requests`."""
        of_each = zip(
            requests.tolist(), found.chosen.tolist(), found.top_ids, found.top, strict=True
        )
        for request, chosen, top_ids, top in of_each:
            k = self._requests.logprobs[request]
            self._answers[request].logprobs.append((chosen, top_ids[:k], top[:k]))

    def _stop_at(self, request: int, token: int) -> str | Stopped | None:
        """Why the newest token of a request ends it: its own number, or a stop string."""
        if token in self._requests.stop_token_ids.get(request, ()):
            return str(token)
        answer = self._answers[request]
        return answer.stops.add(answer.token_ids) if answer.stops is not None else None

    def _failed(self, request: int) -> Generation:
        del self._answers[request]
        return Generation(request, [], None, None, NON_FINITE)

    def _ended(self, request: int, is_eos: bool, found: str | Stopped | None) -> Generation:
        answer = self._answers.pop(request)
        token_ids = answer.token_ids
        if self._requests.max_tokens[request] == 0:  # only its prompt was asked for
            token_ids, answer.logprobs, is_eos, found = [], [], False, None
        stop_reason: str | None
        if isinstance(found, Stopped):
            text, stop_reason = found.text, found.stop
        else:
            by_token = is_eos or found is not None
            text = self._detokenizer.decode(token_ids[:-1] if by_token else token_ids)
            stop_reason = found
        return Generation(
            request,
            token_ids,
            text,
            "stop" if is_eos or found is not None else "length",
            stop_reason=stop_reason,
            logprobs=self._logprobs(request, answer.logprobs),
        )

    def _logprobs(self, request: int, noted: list[_TokenLogprob]) -> TokenLogprobs | None:
        k = int(self._requests.logprobs[request])
        if k < 0:
            return None
        if not noted:
            return TokenLogprobs(
                np.zeros(0, np.float32), np.zeros((0, k), np.int32), np.zeros((0, k), np.float32)
            )
        chosen, top_ids, top = zip(*noted, strict=True)
        return TokenLogprobs(np.array(chosen, np.float32), np.stack(top_ids), np.stack(top))
