"""Runs batches with torch: says what a step is, and makes tokens of its logits.

The other ranks of a tensor-parallel group, if there are any, are told each step and compute their
part of it (`step_runner.py`, `follower.py`).
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.engine.arrival import Arrival
from blendrun.engine.decoder import Decoder
from blendrun.engine.drawing import Drawn, TokenDrawer
from blendrun.engine.generations import Generations
from blendrun.engine.graphs import Capture
from blendrun.engine.guides import Guides
from blendrun.engine.layer_clock import layer_clock
from blendrun.engine.logprobs import joined, logprobs
from blendrun.engine.overlap import LaneMaker, Overlap
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.prefix_cache import PrefixCache
from blendrun.engine.prompt_scores import PromptScores, Wanted
from blendrun.engine.requests import EngineRequests
from blendrun.engine.step_inputs import StepInputs
from blendrun.engine.step_result import StepResult
from blendrun.engine.step_runner import KvPages, StepRunner
from blendrun.engine.tokens_ahead import TokensAhead
from blendrun.engine.torch_step import ScoredPrompts, StepClocks, TorchStep
from blendrun.kernels.uploads import upload
from blendrun.schedule.batch import Batch
from blendrun.tree.prefix_tree import Int32


class TorchBackend:
    """Holds the model and the KV tensors; which page is whose is the cache's business."""

    def __init__(
        self,
        decoder: Decoder,
        attention: PagedAttention,
        requests: EngineRequests,
        generations: Generations,
        scores: PromptScores,
        guides: Guides | None,
        cache: PrefixCache,
        *,
        share_reads: bool,
        may_split: bool,
        overlap: Overlap | None = None,
        lanes: LaneMaker | None = None,
        capture: Capture | None = None,
    ) -> None:
        """
        Args:
            share_reads, may_split: see `KvPages`.
            overlap: divides steps into parts, which run on the `lanes`; None: they stay whole.
            capture: see `StepRunner`.
        """
        self._overlap = overlap
        self._group, self._device = decoder.group, decoder.device
        self._generations, self._cache = generations, cache
        # requests that share prefixes are neighbours here
        self._place = np.argsort(requests.tree.leaf_order)
        self._scores = scores
        self._drawer = TokenDrawer(requests, generations, guides, decoder.tokens)
        pages = KvPages(cache.num_pages, cache.page_size, share_reads, may_split)
        self._group.tell(pages.message())
        self._runner = StepRunner(decoder, attention, pages, lanes, capture)

    def run(self, batch: Batch) -> StepResult:
        """Compute a batch and draw a token for every sequence that needs one."""
        return self.launch(batch).result()

    def needs_tokens(self, batch: Batch) -> bool:
        """Whether the step after `batch` needs its tokens on the CPU: for masks or penalties."""
        request, _ = _draws(batch)
        return self._drawer.needs_tokens(request)

    @torch.inference_mode()
    def launch(self, batch: Batch, before: TorchStep | None = None) -> TorchStep:
        """As `run`, without waiting for the device.

        `before`: the step before this one, where the CPU does not know its tokens yet.
        """
        model_clock, sample_clock = (layer_clock(self._device) for _ in range(2))
        model_clock.begin()
        wanted = self._scores.wanted(batch)
        ahead = None
        if before is not None:
            decodes = batch.request[: batch.num_decodes]
            ahead = TokensAhead.of(decodes, before.token_ids, before.request)
        step = self._inputs(batch, wanted, ahead)
        if self._group.shard.size > 1:
            self._group.tell(step.message())
        to_draw, to_score = self._runner.forward(step, ahead)
        scored = None if wanted is None else self._score_prompts(to_score, wanted)
        best, logits = self._runner.next_tokens(to_draw, step)
        model_clock.end()
        sample_clock.begin()
        drawn = Drawn.of(best, self._device)
        request, position = _draws(batch)
        if logits is not None:
            rows = step.whole
            drawn = drawn.with_rows(rows, self._drawer.draw(logits, request[rows], position[rows]))
        sample_clock.end()
        clocks = StepClocks(self._runner.clock, model_clock, sample_clock)
        return TorchStep(request, drawn, scored, clocks, self._device)

    def _score_prompts(self, hidden: Tensor, wanted: Wanted) -> ScoredPrompts:
        """Log-probabilities of prompt tokens, out of hidden states [W, H]."""
        parts = []
        for start, logits in self._runner.prompt_logits(hidden):
            if logits is not None:
                low, high = np.searchsorted(wanted.pair_row, [start, start + len(logits)])
                rows, tokens = (
                    upload(torch.from_numpy(column), self._device)
                    for column in (wanted.pair_row[low:high] - start, wanted.pair_token[low:high])
                )
                parts.append(logprobs(logits.float(), rows, tokens, wanted.top_k))
        return ScoredPrompts(self._scores, wanted, Arrival(self._device, *joined(parts)))

    def _inputs(
        self, batch: Batch, wanted: Wanted | None, ahead: TokensAhead | None = None
    ) -> StepInputs:
        writes = self._cache.take_writes()
        context_len = (batch.start + batch.num_tokens).astype(np.int32)
        num_pages = -(-int(context_len.max()) // self._cache.page_size)
        token_ids, positions = self._tokens(batch, ahead)
        last = np.cumsum(batch.num_tokens, dtype=np.int32) - 1
        request, _ = _draws(batch)
        whole = np.flatnonzero(self._drawer.needs_logits(request)).astype(np.int32)
        scored = np.zeros(0, np.int32) if wanted is None else wanted.token_idx.astype(np.int32)
        bounds, memory_frac = np.zeros(0, np.int32), np.zeros(0)
        if self._overlap is not None:
            division = self._overlap.divide(batch.num_tokens, context_len)
            if division is not None:
                bounds = division.bounds.astype(np.int32)
                memory_frac = np.array([division.memory_frac])
        return StepInputs(
            slot=writes.slot,
            memory_frac=memory_frac,
            token_idx=writes.token_idx,
            copy_from=writes.copy_from,
            copy_to=writes.copy_to,
            token_ids=token_ids,
            positions=positions,
            part_bounds=bounds,
            num_tokens=batch.num_tokens,
            context_len=context_len,
            page_table=self._cache.page_table[batch.slot, :num_pages],
            order=np.argsort(self._place[batch.request]).astype(np.int32),
            drawn=last[batch.needs_logits],
            whole=whole,
            scored=scored,
        )

    def _tokens(self, batch: Batch, ahead: TokensAhead | None) -> tuple[Int32, Int32]:
        """Token ids and positions of the batch, [T] each; an id is 0 where it is `ahead`."""
        n = batch.num_decodes
        last = np.zeros(n, np.int32)
        if ahead is None:
            last = self._generations.last_tokens(batch.request[:n])
        ids = [last]
        positions = [batch.start[:n]]
        for i in range(n, len(batch.slot)):
            start = int(batch.start[i])
            end = start + int(batch.num_tokens[i])
            ids.append(self._generations.tokens(int(batch.request[i]), start, end))
            positions.append(np.arange(start, end, dtype=np.int32))
        return np.concatenate(ids).astype(np.int32), np.concatenate(positions).astype(np.int32)


def _draws(batch: Batch) -> tuple[Int32, npt.NDArray[np.int64]]:
    """Requests that get a token, and the position of that token, [R] each."""
    position = (batch.start + batch.num_tokens)[batch.needs_logits].astype(np.int64)
    return batch.request[batch.needs_logits], position
