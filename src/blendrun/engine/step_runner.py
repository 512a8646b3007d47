"""A rank's part of a step: its layers over its own KV pages, its columns of the logits.

What the step is, somebody else has decided, and who owns a page, too; the same code runs on every
rank of a tensor-parallel group, and on one alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.decode_graphs import DecodeGraphs, scratch_pages
from blendrun.engine.decoder import Decoder
from blendrun.engine.graphs import Capture
from blendrun.engine.layer_calls import LayerCalls
from blendrun.engine.layer_clock import CpuClock, layer_clock
from blendrun.engine.overlap import LaneMaker
from blendrun.engine.overlap_executor import OverlapExecutor
from blendrun.engine.paged_attention import PagedAttention, StepReads, StepWrites
from blendrun.engine.sampler import Sampled
from blendrun.engine.step_cuts import bounding_resource
from blendrun.engine.step_inputs import StepInputs
from blendrun.engine.step_part import StepPart
from blendrun.engine.tensor_group import Message
from blendrun.engine.tokens_ahead import TokensAhead
from blendrun.engine.vocab_shards import best_tokens, whole_logits
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes, find_shared_prefixes
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64

PAGES = 2  # kind of message
DRAWN_AT_ONCE = 256  # rows; their logits are still in the caches when the best is looked for
_SCORED_AT_ONCE = 64  # prompt positions; bounds their logits: 64 rows of 150 K tokens are 38 MB


@dataclass(frozen=True, slots=True)
class KvPages:
    """The KV pages of a window of requests, and how attention reads them."""

    num_pages: int
    page_size: int  # tokens
    share_reads: bool  # a prefix that requests share is read once for all of them
    may_split: bool  # see `CpuAttention.plan`

    def message(self) -> Message:
        """For the other ranks."""
        numbers = [self.num_pages, self.page_size, int(self.share_reads), int(self.may_split)]
        return Message(PAGES, numbers, np.zeros(0, np.int32))

    @classmethod
    def of(cls, message: Message) -> "KvPages":
        """What `message` said."""
        num_pages, page_size, share_reads, may_split = message.numbers[:4]
        return cls(num_pages, page_size, bool(share_reads), bool(may_split))


class NextTokens(NamedTuple):
    """What the draws of a step are made of; None on all ranks but the first."""

    best: Sampled | None  # greedy, [R]; None where R is 0, too
    logits: Tensor | None  # [A, vocab] of the rows that are `whole`


class StepRunner:
    """Holds the KV tensors of its heads."""

    def __init__(
        self,
        decoder: Decoder,
        attention: PagedAttention,
        pages: KvPages,
        lanes: LaneMaker | None = None,
        capture: Capture | None = None,
    ) -> None:
        """`lanes` are for steps in parts, `capture` captures decodes; None: there are none."""
        self._lanes = lanes
        config = decoder.config
        self.clock = layer_clock(decoder.device)  # of the last step's attention and KV writes
        self._decoder, self._attention, self._pages = decoder, attention, pages
        self._k_cache, self._v_cache = attention.alloc_kv_cache(
            config.num_layers,
            pages.num_pages + (scratch_pages(pages.page_size) if capture else 0),
            pages.page_size,
            config.num_kv_heads,
            config.head_dim,
            decoder.dtype,
        )
        caches = (self._k_cache, self._v_cache)
        fits = LayerCalls.fits(decoder, attention)
        self._calls = LayerCalls(decoder, *caches) if fits else None
        self._graphs: DecodeGraphs | None = None
        if capture is not None:
            self._graphs = DecodeGraphs(decoder, capture, *caches, pages.num_pages)

    def forward(self, step: StepInputs, ahead: TokensAhead | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states [R, H] for the draws and [Q, H] for the scores of prompts.

        `ahead`: tokens of the step that only the device knows.
        """
        self.clock = layer_clock(self._decoder.device)
        if len(step.copy_from):
            self._attention.copy_pages(
                self._k_cache,
                self._v_cache,
                torch.from_numpy(step.copy_from),
                torch.from_numpy(step.copy_to),
            )
        token_ids = self._indices(step.token_ids)
        if ahead is not None:
            token_ids = ahead.over(token_ids)
        if len(step.part_bounds):
            hidden = self._in_parts(step, token_ids)
        else:
            hidden = self._whole(step, token_ids)
        return hidden[: len(step.drawn)], hidden[len(step.drawn) :]

    def _whole(self, step: StepInputs, token_ids: Tensor) -> Tensor:
        """Hidden states [R + Q, H]."""
        shared = self._shared(step)
        if self._graphs is not None and shared is None:
            hidden = self._graphs.forward(step, token_ids)
            if hidden is not None:
                return hidden
        positions, rows = self._indices(step.positions), self._indices(_rows(step))
        attend, calls = self._attend(step, shared), self._calls
        if calls is None:
            return self._decoder.forward(token_ids, positions, attend, rows)

        def layers(hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            attended, seconds = calls.run(hidden, cos, sin, attend.writes, attend.plan)
            self.clock = CpuClock(seconds)
            return attended

        return self._decoder.forward_with(layers, token_ids, positions, rows)

    def _in_parts(self, step: StepInputs, token_ids: Tensor) -> Tensor:
        """As a whole step's `Decoder.forward`."""
        assert self._lanes is not None
        executor = OverlapExecutor(self._lanes(float(step.memory_frac[0])))
        bounds = step.part_bounds
        begin = np.concatenate([[0], np.cumsum(step.num_tokens)])[bounds]
        parts = []
        for number, (first, last) in enumerate(pairwise(bounds.tolist())):
            own = step.part(first, last)
            parts.append(
                StepPart(
                    token_ids[begin[number] : begin[number + 1]],
                    self._indices(own.positions),
                    self._attend(own, self._shared(own), number),
                    self._indices(_rows(own)),
                    bounding_resource(own.num_tokens),
                )
            )
        hidden = self._decoder.forward_parts(parts, executor)
        # rows come part by part, in each of them those to draw first
        part = np.searchsorted(begin[:-1], _rows(step), side="right")
        place = np.argsort(part, kind="stable")
        return hidden if (place[1:] > place[:-1]).all() else hidden[self._indices(_inverse(place))]

    def _indices(self, values: Int32 | Int64) -> Tensor:
        """int64, on the device."""
        return upload(torch.from_numpy(values.astype(np.int64)), self._decoder.device)

    def next_tokens(self, hidden: Tensor, step: StepInputs) -> NextTokens:
        """What comes next after the R tokens whose hidden states these are."""
        best: list[Sampled | None] = []
        whole: list[Tensor | None] = []
        vocab_size, group = self._decoder.config.vocab_size, self._decoder.group
        for start in range(0, len(hidden), DRAWN_AT_ONCE):
            some = hidden[start : start + DRAWN_AT_ONCE]
            low, high = np.searchsorted(step.whole, [start, start + len(some)])
            if high == low:
                best.append(best_tokens(self._decoder.best(some), vocab_size, group))
            else:
                logits = self._decoder.logits(some)
                best.append(best_tokens(self._decoder.tokens.best(logits), vocab_size, group))
                rows = self._indices(step.whole[low:high] - np.int32(start))
                chosen = logits if len(rows) == len(logits) else logits[rows]
                whole.append(whole_logits(chosen, vocab_size, group))
        return NextTokens(_all_tokens(best), _all_rows(whole))

    def prompt_logits(self, hidden: Tensor) -> Iterator[tuple[int, Tensor | None]]:
        """Logits for hidden states [Q, H], some rows at a time, each with the first row's number.

        None on all ranks but the first, which go through them all the same.
        """
        for start in range(0, len(hidden), _SCORED_AT_ONCE):
            logits = self._decoder.logits(hidden[start : start + _SCORED_AT_ONCE])
            vocab_size = self._decoder.config.vocab_size
            yield start, whole_logits(logits, vocab_size, self._decoder.group)

    def _shared(self, step: StepInputs) -> SharedPrefixes | None:
        """What sequences of the step read together."""
        if not self._pages.share_reads:
            return None
        config = self._decoder.config
        return find_shared_prefixes(
            step.order,
            step.page_table,
            step.num_tokens,
            step.context_len,
            self._pages.page_size,
            config.num_heads // config.num_kv_heads,
            self._attention.prefix_cost_len,
        )

    def _attend(self, step: StepInputs, shared: SharedPrefixes | None, part: int = 0) -> "_Attend":
        config = self._decoder.config
        indptr = np.concatenate([[0], np.cumsum(step.num_tokens)]).astype(np.int32)
        plan = self._attention.plan(
            self._k_cache[0],
            config.num_heads,
            torch.from_numpy(indptr),
            torch.from_numpy(step.context_len),
            torch.from_numpy(step.page_table),
            config.head_dim**-0.5,
            shared,
            may_split=self._pages.may_split,
            part=part,
        )
        writes = self._attention.plan_writes(
            torch.from_numpy(step.token_idx), torch.from_numpy(step.slot)
        )
        return _Attend(self, writes, plan)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, step: "_Attend"
    ) -> Tensor:
        """Turn q and k, write K and V of the step's tokens, then attend; [T, num_heads, D]."""
        self.clock.begin()
        k_cache, v_cache = self._k_cache[layer], self._v_cache[layer]
        step.writes.run(q, k, v, rotation, k_cache, v_cache)
        out = step.plan.run(q, k_cache, v_cache)
        self.clock.end()
        return out


def _rows(step: StepInputs) -> Int32:
    """Tokens that need logits: those to draw after, then those that score."""
    return np.concatenate([step.drawn, step.scored])


def _inverse(order: Int64) -> Int64:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def _all_tokens(parts: list[Sampled | None]) -> Sampled | None:
    """Of all parts; None where there is none, or none on this rank."""
    known = [part for part in parts if part is not None]
    return Sampled(*map(torch.cat, zip(*known, strict=True))) if known else None


def _all_rows(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


@dataclass(frozen=True, slots=True)
class _Attend:
    """A step's attention, planned once and run by every layer."""

    runner: StepRunner
    writes: StepWrites
    plan: StepReads

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation) -> Tensor:
        return self.runner.attend(layer, q, k, v, rotation, self)
