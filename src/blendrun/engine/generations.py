"""What every running request has generated so far, and when it is over.

A request ends with a token of the end-of-sequence set or one of its own stop tokens (which stay in
its token ids, not in its text), at a stop string (which is cut from its text), where what it must
look like allows nothing more, or at `max_tokens`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.reasoning import ReasoningMarks
from blendrun.data.scores import Score
from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.begun import Begun
from blendrun.engine.growing_answer import BY_MODEL, LENGTH, End, GrowingAnswer, TokenLogprob
from blendrun.engine.guides import Guide, Guides
from blendrun.engine.logprobs import Logprobs, StepLogprobs
from blendrun.engine.requests import EngineRequests
from blendrun.engine.stop_strings import StopSearch
from blendrun.engine.token_counts import TokenCounts
from blendrun.errors import BackendError
from blendrun.tree.prefix_tree import Int32

_TAIL = 64  # tokens of a prompt that hold a mark at its end, even if they are single bytes
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
    score: Score | None = None  # of a continuation
    reasoning: str | None = None  # before the text, where the model marks it
    is_copy: bool = False  # of another request's answer


class Generations:
    """Generated tokens of unfinished requests; they survive preemption here."""

    def __init__(
        self,
        requests: EngineRequests,
        eos_token_ids: tuple[int, ...],
        detokenizer: Detokenizer,
        guides: Guides | None = None,
        reasoning: ReasoningMarks | None = None,
    ) -> None:
        """`guides` where some request asks for a structure; `reasoning` where it is marked."""
        self._reasoning = reasoning
        self._requests, self._detokenizer, self._guides = requests, detokenizer, guides
        self._eos = np.array(eos_token_ids, np.int32)
        self._answers: dict[int, GrowingAnswer] = {}
        self._count = np.zeros(len(requests), np.int32)
        # how many tokens are known not to end the answer, whenever an interrupt comes
        self._whole = np.zeros(len(requests), np.int32)

    def resume(self, answers: Iterable[Begun]) -> None:
        """Go on with what was generated before."""
        for begun in answers:
            answer = self._answer(begun.request)
            answer.token_ids, answer.logprobs = list(begun.token_ids), list(begun.logprobs)
            if answer.stops is not None:
                answer.stops.catch_up(begun.token_ids)
            self._count[begun.request] = self._whole[begun.request] = len(begun.token_ids)

    def begun(self) -> Iterator[Begun]:
        """Every unfinished answer that has a token."""
        for request, answer in self._answers.items():
            n = int(self._whole[request])
            if n:
                yield Begun(request, answer.token_ids[:n], answer.logprobs[:n])

    def lengths(self, requests: Int32) -> Int32:
        """Tokens of each so far."""
        return self._count[requests]

    def take(self, requests: Int32) -> list[Begun]:
        """Those of `requests` that have a token; they go on elsewhere, and are forgotten here."""
        taken = set(requests.tolist())
        answers = [begun for begun in self.begun() if begun.request in taken]
        self.forget(taken)
        self._count[requests] = self._whole[requests] = 0
        return answers

    def forget(self, requests: Iterable[int]) -> None:
        """These have ended, and somebody has noted how."""
        for request in requests:
            self._answers.pop(request, None)

    def num_tokens(self, request: int) -> int:
        """Generated tokens of a request that has not ended."""
        return int(self._count[request])

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
        answer = self._answer(request)
        if answer.counts is None:
            repetition = self._requests.repetition_penalty[request] != 1
            answer.counts = TokenCounts(self._requests.prompt(request) if repetition else ())
        answer.counts.catch_up(answer.token_ids)
        return answer.counts

    def guide(self, request: int) -> Guide:
        """How far its answer has come in what it must look like."""
        answer = self._answer(request)
        if answer.guide is None:
            if self._guides is None:
                raise BackendError(f"request {request} asks for a structure that nobody compiles")
            answer.guide = self._guides.begin(self._requests.structure[request])
            for token in answer.token_ids:  # of an answer that is continued
                answer.guide.consume(token)
        return answer.guide

    def add(
        self,
        requests: Int32,
        token_ids: Int32,
        bad: npt.NDArray[np.bool_],
        logprobs: StepLogprobs | None = None,
        errors: Mapping[int, str] | None = None,
    ) -> tuple[npt.NDArray[np.bool_], list[Generation]]:
        """Take one new token of each request; which are over [S], and their generations.

        Those that are over stay known until `forget`. `errors`: by request, why it is `bad`, where
        that is not its logits' fault.
        """
        columns = self._requests
        for request, token in zip(requests.tolist(), token_ids.tolist(), strict=True):
            self._answer(request).token_ids.append(token)
        if logprobs is not None:
            self._note(requests[logprobs.rows], logprobs.logprobs)
        self._count[requests] += 1
        structured = columns.has_structure[requests]  # its end is the end, whatever is ignored
        is_eos = np.isin(token_ids, self._eos) & (~columns.ignore_eos[requests] | structured)
        over = is_eos | bad | (self._count[requests] >= columns.max_tokens[requests])
        ends: dict[int, End] = {}
        for i in np.flatnonzero((columns.has_stops[requests] | structured) & ~bad).tolist():
            end = self._answers[int(requests[i])].end(bool(is_eos[i]))
            if end is not None:
                over[i], ends[i] = True, end
        ended = []
        for i in np.flatnonzero(over).tolist():
            request = int(requests[i])
            end = BY_MODEL if is_eos[i] else LENGTH
            if bad[i]:
                end = End(None, error=(errors or {}).get(request, NON_FINITE))
            ended.append(self._ended(request, ends.get(i, end)))
        going = requests[~over]
        self._whole[going] = self._count[going]
        return over, ended

    def _answer(self, request: int) -> GrowingAnswer:
        answer = self._answers.get(request)
        if answer is None:
            stops = self._requests.stop.get(request)
            answer = self._answers[request] = GrowingAnswer(
                stop_token_ids=self._requests.stop_token_ids.get(request, ()),
                stops=StopSearch(stops, self._detokenizer) if stops else None,
            )
        return answer

    def _note(self, requests: Int32, found: Logprobs) -> None:
        """Log-probabilities of the newest tokens of `requests`."""
        for i, request in enumerate(requests.tolist()):
            k = self._requests.logprobs[request]
            one = TokenLogprob(float(found.chosen[i]), found.top_ids[i, :k], found.top[i, :k])
            self._answers[request].logprobs.append(one)

    def _ended(self, request: int, end: End) -> Generation:
        answer = self._answers[request]
        if end.error is not None:
            return Generation(request, [], None, None, end.error)
        if self._requests.max_tokens[request] == 0:  # only its prompt was asked for
            answer, end = GrowingAnswer(), LENGTH
        token_ids, text = answer.token_ids, end.text
        if text is None:
            text = self._detokenizer.decode(token_ids if end.in_text else token_ids[:-1])
        reasoning, text = self._parts(request, text)
        k = int(self._requests.logprobs[request])
        return Generation(
            request,
            token_ids,
            text,
            end.finish_reason,
            stop_reason=end.stop_reason,
            logprobs=answer.noted(k) if k >= 0 else None,
            reasoning=reasoning,
        )

    def _parts(self, request: int, text: str) -> tuple[str | None, str]:
        """Reasoning and text of an answer; without marks all of it is text."""
        if self._reasoning is None or self._requests.max_tokens[request] == 0:
            return None, text
        end_of_prompt = self._detokenizer.decode(self._requests.prompt(request)[-_TAIL:].tolist())
        is_open = self._reasoning.is_open(end_of_prompt)
        if self._requests.has_structure[request] and self._reasoning.end not in text:
            is_open = False  # the structure left no place for reasoning
        return self._reasoning.split(text, is_open)
