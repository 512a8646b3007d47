"""Runs batches on the CPU with torch: the model's products there, attention in our kernel."""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.drawing import Drawn, TokenDrawer
from blendrun.engine.generations import Generations
from blendrun.engine.guides import Guides
from blendrun.engine.logprobs import StepLogprobs, joined, logprobs
from blendrun.engine.prefix_cache import PrefixCache
from blendrun.engine.prompt_scores import PromptScores, Wanted
from blendrun.engine.requests import EngineRequests
from blendrun.kernels.cpu.attention import AttentionPlan, CpuAttention
from blendrun.kernels.cpu.rotary import rotate_and_write
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.shared_prefixes import find_shared_prefixes
from blendrun.schedule.batch import Batch
from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True)
class StepResult:
    """New tokens of the sequences that needed logits, in batch order, and where time went."""

    token_ids: Int32  # [R]
    bad: npt.NDArray[np.bool_]  # [R] logits were not finite
    attention_s: float  # attention and KV writes
    model_s: float  # everything else in the model
    sample_s: float
    logprobs: StepLogprobs | None = None


_NOTHING = Drawn(np.zeros(0, np.int32), np.zeros(0, np.bool_), None)
_SCORED_AT_ONCE = 64  # prompt positions; bounds their logits: 64 rows of 150 K tokens are 38 MB


class TorchBackend:
    """Holds the model and the KV tensors; which page is whose is the cache's business."""

    def __init__(
        self,
        decoder: Decoder,
        attention: CpuAttention,
        requests: EngineRequests,
        generations: Generations,
        scores: PromptScores,
        guides: Guides | None,
        cache: PrefixCache,
        *,
        share_reads: bool,
        may_split: bool,
    ) -> None:
        """`share_reads`: attention reads a prefix that requests share once for all of them;
        `may_split`: see `CpuAttention.paged_attention`.
        """
        self._may_split = may_split
        config = decoder.config
        self._decoder, self._attention = decoder, attention
        self._generations, self._cache = generations, cache
        self._share_reads = share_reads
        # requests that share prefixes are neighbours here
        self._place = np.argsort(requests.tree.leaf_order)
        self._scores = scores
        self._drawer = TokenDrawer(requests, generations, guides)
        self._k_cache, self._v_cache = attention.alloc_kv_cache(
            config.num_layers,
            cache.num_pages,
            cache.page_size,
            config.num_kv_heads,
            config.head_dim,
            decoder.dtype,
        )
        self._attention_s = 0.0

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepResult:
        """Compute a batch and draw a token for every sequence that needs one."""
        begin = time.perf_counter()
        self._attention_s = 0.0
        token_ids, positions = self._tokens(batch)
        last = np.cumsum(batch.num_tokens, dtype=np.int64) - 1
        rows = last[batch.needs_logits]
        wanted = self._scores.wanted(batch)
        asked = rows if wanted is None else np.concatenate([rows, wanted.token_idx])
        hidden = self._decoder.forward(
            torch.from_numpy(token_ids),
            torch.from_numpy(positions),
            self._attend(batch),
            torch.from_numpy(asked),
        )
        if wanted is not None:
            self._score_prompts(hidden[len(rows) :], wanted)
        logits = self._decoder.logits(hidden[: len(rows)]) if len(rows) else None
        middle = time.perf_counter()
        drawn = _NOTHING if logits is None else self._drawer.draw(logits, batch)
        end = time.perf_counter()
        model_s = middle - begin - self._attention_s
        return StepResult(
            drawn.token_ids, drawn.bad, self._attention_s, model_s, end - middle, drawn.logprobs
        )

    def _score_prompts(self, hidden: Tensor, wanted: Wanted) -> None:
        """Log-probabilities of prompt tokens, out of hidden states [W, H]."""
        parts = []
        for start in range(0, len(hidden), _SCORED_AT_ONCE):
            end = start + _SCORED_AT_ONCE
            low, high = np.searchsorted(wanted.pair_row, [start, end])
            parts.append(
                logprobs(
                    self._decoder.logits(hidden[start:end]).float(),
                    wanted.pair_row[low:high] - start,
                    wanted.pair_token[low:high],
                    wanted.top_k,
                )
            )
        self._scores.keep(wanted, joined(parts))

    def _attend(self, batch: Batch) -> "_Attend":
        writes = self._cache.take_writes()
        if len(writes.copy_from):
            self._attention.copy_pages(
                self._k_cache,
                self._v_cache,
                torch.from_numpy(writes.copy_from),
                torch.from_numpy(writes.copy_to),
            )
        context_len = batch.start + batch.num_tokens
        num_pages = -(-int(context_len.max()) // self._cache.page_size)
        indptr = np.concatenate([[0], np.cumsum(batch.num_tokens)]).astype(np.int32)
        page_table = self._cache.page_table[batch.slot, :num_pages]
        shared = None
        config = self._decoder.config
        if self._share_reads:
            shared = find_shared_prefixes(
                np.argsort(self._place[batch.request]).astype(np.int32),
                page_table,
                batch.num_tokens,
                context_len,
                self._cache.page_size,
                config.num_heads // config.num_kv_heads,
            )
        plan = self._attention.plan(
            self._k_cache[0],
            config.num_heads,
            torch.from_numpy(indptr),
            torch.from_numpy(context_len.astype(np.int32)),
            torch.from_numpy(page_table),
            config.head_dim**-0.5,
            shared,
            may_split=self._may_split,
        )
        token_idx, slots = torch.from_numpy(writes.token_idx), torch.from_numpy(writes.slot)
        return _Attend(self, token_idx, slots, plan)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, step: "_Attend"
    ) -> Tensor:
        """Turn q and k, write K and V of the step's tokens, then attend; [T, num_heads, D]."""
        begin = time.perf_counter()
        k_cache, v_cache = self._k_cache[layer], self._v_cache[layer]
        rotate_and_write(q, k, v, rotation, k_cache, v_cache, step.token_idx, step.slots)
        out = step.plan.run(q, k_cache, v_cache)
        self._attention_s += time.perf_counter() - begin
        return out

    def _tokens(self, batch: Batch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Token ids and positions of the batch, int64 [T] each."""
        n = batch.num_decodes
        ids = [self._generations.last_tokens(batch.request[:n])]
        positions = [batch.start[:n]]
        for i in range(n, len(batch.slot)):
            start = int(batch.start[i])
            end = start + int(batch.num_tokens[i])
            ids.append(self._generations.tokens(int(batch.request[i]), start, end))
            positions.append(np.arange(start, end, dtype=np.int32))
        return np.concatenate(ids).astype(np.int64), np.concatenate(positions).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Attend:
    """A step's attention, planned once and run by every layer."""

    backend: TorchBackend
    token_idx: Tensor  # int32 [W]
    slots: Tensor  # int64 [W]
    plan: AttentionPlan

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation) -> Tensor:
        return self.backend.attend(layer, q, k, v, rotation, self)
