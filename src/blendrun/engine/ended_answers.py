"""Answers that have ended: with those of their twins, until they are safe on disk."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from blendrun.data.answers import answers_table
from blendrun.data.results import RankJournal, ResultJournal
from blendrun.data.scores import Score
from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.generations import Generation
from blendrun.engine.requests import EngineRequests
from blendrun.tree.prefix_tree import Int32


class Scores(Protocol):
    """Log-probabilities of prompts, for requests that ask; the methods of `PromptScores`."""

    def take(self, request: int) -> TokenLogprobs | None: ...

    def take_score(self, request: int) -> Score | None: ...

    def forget(self, request: int) -> None: ...


class EndedAnswers:
    def __init__(
        self,
        requests: EngineRequests,
        scores: Scores,
        twins: Mapping[int, Int32],
        journal: ResultJournal | RankJournal,
    ) -> None:
        """`twins` take the answer of another request that runs."""
        self._requests, self._scores, self._twins = requests, scores, twins
        self._journal = journal
        self._ended: list[Generation] = []
        self.num_saved = 0  # rows

    def add(self, generation: Generation) -> None:
        request = generation.request
        if generation.error is None:
            generation = replace(
                generation,
                score=self._scores.take_score(request),
                prompt_logprobs=self._scores.take(request),
            )
        self._scores.forget(request)
        self._ended.append(generation)
        for twin in self._twins.get(request, ()):
            self._ended.append(replace(generation, request=int(twin), is_copy=True))

    def save(self, num_cached: Int32) -> Int32:
        """Write them; whose they are. `num_cached` [N]: prompt tokens that were not computed."""
        request = np.array([g.request for g in self._ended], np.int32)
        if not len(request):
            return request
        prompt_len = self._requests.prompt_len[request]
        is_copy = np.array([g.is_copy for g in self._ended], np.bool_)
        table = answers_table(
            row=self._requests.row[request],
            output_index=self._requests.sample[request],
            output_text=[g.text for g in self._ended],
            output_reasoning=[g.reasoning for g in self._ended],
            output_token_ids=[g.token_ids for g in self._ended],
            finish_reason=[g.finish_reason for g in self._ended],
            num_prompt_tokens=prompt_len,
            num_cached_tokens=np.where(is_copy, prompt_len, np.maximum(num_cached[request], 0)),
            error=[g.error for g in self._ended],
            stop_reason=[g.stop_reason for g in self._ended],
            output_logprobs=[g.logprobs for g in self._ended],
            prompt_logprobs=[g.prompt_logprobs for g in self._ended],
            score=[g.score for g in self._ended],
        )
        self._journal.append(table)
        self.num_saved += len(self._ended)
        self._ended = []
        return request
