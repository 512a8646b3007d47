"""Steps of one token per sequence, captured for some numbers of sequences and replayed for all.

A step is padded to the next such number (its bucket). Sequences that pad it read and write pages
that nobody else has, behind those of the pool:

    pages     0 ───────────── num_pages ── num_pages + scratch_pages
              of requests     │ of padding: sequence i has slot num_pages * page_size + i

The first step of a bucket runs as it is, and so warms up what a capture may not start; the second
is captured.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.graphs import Capture, Graph, StaticDecodes
from blendrun.engine.step_inputs import StepInputs
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # sequences
_MOST_PADDING = max(b - a - 1 for a, b in pairwise((0, *BUCKETS)))


def scratch_pages(page_size: int) -> int:
    """Pages behind those of the pool that padding needs."""
    return -(-_MOST_PADDING // page_size)


@dataclass(slots=True, eq=False)
class _Bucket:
    """What steps of up to so many sequences find at its place."""

    token_ids: Tensor  # int64 [B], on the device
    positions: Tensor  # int64 [B]
    attention: StaticDecodes
    is_warm: bool = False
    graph: Graph | None = None


class DecodeGraphs:
    def __init__(
        self, decoder: Decoder, capture: Capture, k_cache: Tensor, v_cache: Tensor, num_pages: int
    ) -> None:
        """`num_pages`: of the pool; the caches have `scratch_pages` more."""
        self._decoder, self._capture = decoder, capture
        self._k_cache, self._v_cache = k_cache, v_cache
        self._num_pages, self._page_size = num_pages, k_cache.shape[2]
        self._buckets: dict[int, _Bucket] = {}

    def forward(self, step: StepInputs, token_ids: Tensor) -> Tensor | None:
        """Hidden states [S, H] of a step that shares no reads; None: no graph is for such a step.

        They are overwritten by the next call. `token_ids`: those of the step, on the device.
        """
        num_seqs = len(step.num_tokens)
        if not _is_plain(step) or num_seqs > BUCKETS[-1]:
            return None
        bucket = self._bucket(BUCKETS[bisect_left(BUCKETS, num_seqs)])
        if not self._fill(bucket, step, token_ids):
            return None
        if bucket.graph is None:
            if not bucket.is_warm:
                bucket.is_warm = True
                return self._work(bucket)[:num_seqs]
            bucket.graph = self._capture.maker(lambda: self._work(bucket))
        bucket.graph.replay()
        return bucket.graph.made[:num_seqs]

    def _bucket(self, size: int) -> _Bucket:
        found = self._buckets.get(size)
        if found is None:
            config, device = self._decoder.config, self._decoder.device
            attention = self._capture.attention.static_decodes(
                self._k_cache[0], config.num_heads, size, config.head_dim**-0.5
            )
            ids, positions = torch.zeros(2, size, dtype=torch.int64, device=device)
            found = self._buckets[size] = _Bucket(ids, positions, attention)
        return found

    def _fill(self, bucket: _Bucket, step: StepInputs, token_ids: Tensor) -> bool:
        """Whether the step has room there."""
        num_seqs, padding = len(step.num_tokens), len(bucket.token_ids) - len(step.num_tokens)
        context_len = np.concatenate([step.context_len, np.ones(padding, np.int32)])
        if not bucket.attention.fits(context_len):
            return False
        slots: Int64 = np.empty(len(context_len), np.int64)
        slots[step.token_idx] = step.slot
        slots[num_seqs:] = self._num_pages * self._page_size + np.arange(padding)
        pages: Int32 = np.zeros((len(context_len), step.page_table.shape[1]), np.int32)
        pages[:num_seqs] = step.page_table
        pages[num_seqs:, 0] = slots[num_seqs:] // self._page_size
        bucket.attention.move_to(context_len, pages, slots)
        positions = upload(torch.from_numpy(step.positions), self._decoder.device)
        bucket.token_ids[:num_seqs].copy_(token_ids)
        bucket.positions[:num_seqs].copy_(positions)
        return True

    def _work(self, bucket: _Bucket) -> Tensor:
        attention = bucket.attention

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation) -> Tensor:
            caches = (self._k_cache[layer], self._v_cache[layer])
            attention.writes.run(q, k, v, rotation, *caches)
            return attention.reads.run(q, *caches)

        return self._decoder.forward(bucket.token_ids, bucket.positions, attend)


def _is_plain(step: StepInputs) -> bool:
    """Whether each sequence has one token, goes into one slot and is followed by a draw."""
    num_seqs = len(step.num_tokens)
    counts = {len(step.token_ids), len(step.token_idx), len(step.drawn)}
    return (
        counts == {num_seqs} and len(np.unique(step.token_idx)) == num_seqs and not len(step.scored)
    )
