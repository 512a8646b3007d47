"""Runs batches with vLLM: the batcher says which requests are in, vLLM computes their tokens.

A batch is done when vLLM has made the tokens that it asks for. vLLM schedules by itself, so some
requests may be ahead of the batcher; their tokens wait here until it asks. It gets a request when
the batcher first computes some of it, so that its first-come queue has the batcher's order, and is
never longer than one step.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from blendrun.engine.generations import Generations
from blendrun.engine.logprobs import StepLogprobs
from blendrun.engine.requests import EngineRequests
from blendrun.engine.step_result import EngineCounts, StepResult
from blendrun.engine.vllm import Grown, Vllm
from blendrun.engine.vllm_logprobs import Position, VllmScores, step_logprobs
from blendrun.engine.vllm_params import ParamsFactory
from blendrun.errors import BackendError
from blendrun.schedule.batch import Batch, Freed
from blendrun.tree.prefix_tree import Int32

REFUSED = "refused_by_vllm"
ENDED_EARLY = "ended_by_vllm"


@dataclass(slots=True)
class _Live:
    """A request that vLLM has, or had, and the batcher has not ended."""

    tokens: deque[int] = field(default_factory=deque)  # that the batcher has not asked for
    logprobs: deque[Position] = field(default_factory=deque)
    has_begun: bool = False
    is_over: bool = False  # nothing more comes from vLLM
    error: str | None = None  # why there is no further token


class VllmBackend:
    """Also keeps what vLLM says of each request: `num_cached` [N] prompt tokens."""

    def __init__(
        self,
        vllm: Vllm,
        requests: EngineRequests,
        generations: Generations,
        scores: VllmScores,
        params: ParamsFactory,
        is_held: bool,
    ) -> None:
        """`is_held`: steps compute no more than the batch says, where vLLM's scheduler obeys."""
        self._vllm, self._requests, self._generations = vllm, requests, generations
        self._scores, self._params, self._is_held = scores, params, is_held
        self._live: dict[int, _Live] = {}
        self._counted = (0, 0, 0, 0)
        self.num_cached: Int32 = np.zeros(len(requests), np.int32)

    def run(self, batch: Batch) -> StepResult:
        """Step vLLM until every token is there that the batch asks for."""
        begin = time.perf_counter()
        for request in batch.request[batch.num_decodes :].tolist():
            if request not in self._live:  # it goes on here also while it is sent back
                self._live[request] = self._enter(request)
        asked = batch.request[batch.needs_logits]
        missing = [request for request in asked.tolist() if self._lacks(request)]
        self._hold(batch)
        while missing:
            if self._vllm.num_unfinished == 0:
                raise BackendError(f"vLLM has lost {len(missing)} requests, {missing[0]} for one")
            for grown in self._vllm.step():
                self._take(grown)
            self._let_go()
            missing = [request for request in missing if self._lacks(request)]
        middle = time.perf_counter()
        tokens, errors, logprobs = self._tokens(asked)
        return StepResult(
            tokens,
            np.isin(asked, list(errors)),
            attention_s=0.0,  # vLLM does not tell it from the rest
            model_s=middle - begin,
            sample_s=time.perf_counter() - middle,
            logprobs=logprobs,
            errors=errors,
            counts=self._counts(),
        )

    def end(self, requests: Iterable[int]) -> None:
        """These have their answers."""
        ended = [(request, self._live.pop(request)) for request in requests]
        going = [request for request, live in ended if not live.is_over]
        if going:
            self._vllm.end(going)

    def check_over(self) -> None:
        """Raises BackendError where vLLM has requests that nobody waits for."""
        if self._live or self._vllm.num_unfinished:
            raise BackendError(
                f"{len(self._live)} requests and {self._vllm.num_unfinished} in vLLM at the end"
            )

    def _enter(self, request: int) -> _Live:
        begun = self._generations.num_tokens(request)
        end = int(self._requests.prompt_len[request]) + begun
        token_ids = self._generations.tokens(request, 0, end).tolist()
        try:
            refusal = self._vllm.add(request, token_ids, self._params.make(request, begun))
        except ValueError as error:
            refusal = str(error)
        if refusal is None:
            return _Live()
        return _Live(is_over=True, error=f"{REFUSED}: {refusal}")

    def _lacks(self, request: int) -> bool:
        live = self._live[request]
        return not live.tokens and not live.is_over

    def _take(self, grown: Grown) -> None:
        live = self._live.get(grown.request)
        if live is None:  # it ended, and vLLM's last word comes late
            return
        live.tokens.extend(grown.token_ids)
        if grown.logprobs is not None:
            live.logprobs.extend(grown.logprobs)
        if grown.prompt_logprobs:
            self._scores.keep(grown.request, grown.prompt_logprobs)
        if not live.has_begun:
            live.has_begun = True
            prompt_len = int(self._requests.prompt_len[grown.request])
            self.num_cached[grown.request] = min(grown.num_cached, prompt_len)
        if grown.end is not None:
            live.is_over, live.error = True, f"{ENDED_EARLY}: {grown.end}"

    def _tokens(self, asked: Int32) -> tuple[Int32, dict[int, str], StepLogprobs | None]:
        """The next token of each [R], those that have none, and log-probabilities."""
        tokens, errors = np.zeros(len(asked), np.int32), {}
        positions: list[Position | None] = [None] * len(asked)
        for i, request in enumerate(asked.tolist()):
            live = self._live[request]
            if not live.tokens:
                errors[request] = live.error or ENDED_EARLY
                continue
            tokens[i] = live.tokens.popleft()
            if live.logprobs:
                positions[i] = live.logprobs.popleft()
        return tokens, errors, step_logprobs(self._requests, asked, tokens, positions)

    def _hold(self, batch: Batch) -> None:
        """Keep vLLM to the budget of `batch`."""
        scheduler = self._vllm.scheduler
        if scheduler is not None and self._is_held:
            new = batch.num_tokens[batch.num_decodes :]
            # of a prompt that is cached to its end, vLLM computes the last block again
            again = int((new == 1).sum()) * (self._vllm.block_size - 1)
            scheduler.hold_to(int(batch.num_tokens.sum()) + again)

    def _let_go(self) -> None:
        """What is missing after a step, vLLM may compute as it likes."""
        if self._vllm.scheduler is not None:
            self._vllm.scheduler.hold_to(None)

    def _counts(self) -> EngineCounts | None:
        """What vLLM has done since the last call; None where it does not tell."""
        scheduler = self._vllm.scheduler
        if scheduler is None:
            return None
        now = (
            scheduler.prefill_tokens,
            scheduler.decode_tokens,
            scheduler.preemptions,
            scheduler.recomputed_tokens,
        )
        prefill, decode, preemptions, recomputed = (
            new - old for new, old in zip(now, self._counted, strict=True)
        )
        self._counted = now
        return EngineCounts(
            prefill,
            decode,
            len(scheduler.running),
            round(scheduler.kv_cache_manager.usage * self._vllm.num_blocks),
            preemptions,
            recomputed,
        )


class VllmBlocks:
    """vLLM's KV blocks as the run loop sees them: nobody here says which is whose."""

    def __init__(self, backend: VllmBackend, num_blocks: int) -> None:
        self._backend, self.num_pages = backend, num_blocks
        self._request: dict[int, int] = {}  # by slot

    def begin_step(self, batch: Batch) -> None:
        for slot in batch.freed.slots.tolist():  # sent back by the batcher; vLLM goes on with it
            del self._request[slot]
        new = zip(batch.new_slot.tolist(), batch.new_request.tolist(), strict=True)
        self._request.update(new)

    def free(self, freed: Freed) -> None:
        self._backend.end([self._request.pop(slot) for slot in freed.slots.tolist()])

    def check_integrity(self, free_pages: int) -> None:
        """Raises BackendError where the batcher, or vLLM, has anything left."""
        if free_pages != self.num_pages:
            raise BackendError(f"{free_pages} of {self.num_pages} pages are free at the end")
        self._backend.check_over()
