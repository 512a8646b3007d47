"""The batcher: continuous batching with chunked prefill, one decision per engine step.

Pure bookkeeping over columns: it knows lengths, slots and page counts, no tokens and no tensors,
so that the engine and a simulator run the same one. A step decodes every request that is ready,
goes on with begun prefills, then admits from the queue while prefill tokens and pages are left.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.errors import BackendError
from blendrun.schedule.admission import AdmissionQueue, Side
from blendrun.schedule.batch import Batch, KVCache
from blendrun.tree.prefix_tree import Int32, Int64

_FREE = -1
_WATERMARK_FRAC = 0.01  # pages left free for running decodes when a request is admitted, …
_RECOVERY_FRAC = 0.10  # … and while preempted ones wait, so that they are not preempted again


@dataclass(frozen=True, slots=True)
class BatchLimits:
    chunk_size: int  # prefill tokens of a step at most
    max_seqs: int  # running requests at most


@dataclass(slots=True)
class BatcherCounts:
    """What happened so far; tokens of prompts and, after preemption, of outputs too."""

    preemptions: int = 0
    recomputed_tokens: int = 0


class Batcher:
    """Runs the requests of `queue` through slots 0 to `max_seqs` - 1.

    `next_batch` → the backend computes it → `commit`, until `next_batch` gives None.
    """

    def __init__(
        self, queue: AdmissionQueue, cache: KVCache, prompt_len: Int32, limits: BatchLimits
    ) -> None:
        """`prompt_len`: tokens of each request, [N] by request number."""
        self._queue, self._cache, self._limits = queue, cache, limits
        self._known_len = prompt_len.astype(np.int32)  # [N] prompt and generated tokens
        self._computed_before = np.zeros(len(prompt_len), np.int32)  # [N] lost by preemption
        self.num_cached = np.full(len(prompt_len), -1, np.int32)  # [N] at first admission
        self._request = np.full(limits.max_seqs, _FREE, np.int32)  # [slots]
        self._computed = np.zeros(limits.max_seqs, np.int32)  # [slots] tokens with K and V
        self._decoding = np.zeros(limits.max_seqs, np.bool_)  # [slots] all known tokens but one
        self._age = np.zeros(limits.max_seqs, np.int64)  # [slots] admission number
        self._side = np.zeros(limits.max_seqs, np.int8)  # [slots]
        self._num_admitted = 0
        self._step = 0
        self.counts = BatcherCounts()

    @property
    def num_running(self) -> int:
        return int((self._request != _FREE).sum())

    @property
    def num_waiting(self) -> int:
        return self._queue.num_waiting

    def side_counts(self) -> tuple[int, int]:
        """Running requests from the left and from the right end."""
        running = self._side[self._request != _FREE]
        right = int(running.sum())
        return len(running) - right, right

    def next_batch(self) -> Batch | None:
        """The next step, or None when nothing runs and nothing waits.

        Raises:
            BackendError: requests wait but none can make progress.
        """
        self._cache.begin_step()
        decodes = self._decodes_with_pages()
        num_tokens = len(decodes)
        self._cache.extend_decodes(decodes, self._computed[decodes])
        chunks: list[tuple[int, int]] = []  # slot, tokens
        budget = self._limits.chunk_size
        for slot in self._prefilling():
            budget, num_tokens = self._prefill(int(slot), budget, num_tokens, chunks)
        while budget > 0:
            admitted = self._admit()
            if admitted is None:
                break
            budget, num_tokens = self._prefill(admitted, budget, num_tokens, chunks)
        if not num_tokens:
            if self.num_running or self._queue.num_waiting:
                raise BackendError(
                    f"no progress: {self.num_running} running, {self._queue.num_waiting} waiting, "
                    f"{self._cache.available_pages()} of {self._cache.num_pages} KV pages to be had"
                )
            return None
        self._step += 1
        return self._batch(decodes, chunks)

    def commit(self, batch: Batch, finished: npt.NDArray[np.bool_]) -> None:
        """Take over that `batch` was computed.

        Args:
            batch: the last one from `next_batch`.
            finished: [S] the sequence is over; every other one that had logits got a token.
        """
        self._computed[batch.slot] += batch.num_tokens
        self._decoding[batch.slot] = batch.needs_logits
        grown = batch.request[batch.needs_logits & ~finished]
        self._known_len[grown] += 1
        for i in np.flatnonzero(finished):
            self._leave(int(batch.slot[i]), finished=True)

    def _decodes_with_pages(self) -> Int64:
        """Slots that decode in this step, in slot order; preempts until their pages are there."""
        while True:
            running = np.flatnonzero(self._request != _FREE)
            slots: Int64 = running[self._decoding[running]]
            need = self._cache.decode_pages(slots, self._computed[slots])
            if need <= self._cache.available_pages():
                return slots
            if len(running) == 1:
                raise BackendError("one request alone does not fit into the KV pages")
            self._preempt(int(running[np.argmax(self._victim_rank(running))]))

    def _victim_rank(self, running: Int64) -> Int64:
        """The youngest request that did not come from the left goes first, then the youngest."""
        return self._age[running] + self._side[running].astype(np.int64) * (self._num_admitted + 1)

    def _preempt(self, slot: int) -> None:
        request = int(self._request[slot])
        self.counts.preemptions += 1
        self._computed_before[request] = max(self._computed_before[request], self._computed[slot])
        self._leave(slot, finished=False)

    def _leave(self, slot: int, finished: bool) -> None:
        side, request = self._slot_side(slot), int(self._request[slot])
        self._cache.release(slot, finished)
        self._request[slot] = _FREE
        if finished:
            self._queue.finish(side, request)
        else:
            self._queue.put_back(side, request)

    def _slot_side(self, slot: int) -> Side:
        return 1 if self._side[slot] else 0

    def _prefilling(self) -> Int64:
        """Slots with known tokens still to compute, oldest first."""
        slots = np.flatnonzero((self._request != _FREE) & ~self._decoding)
        return slots[np.argsort(self._age[slots])]

    def _prefill(
        self, slot: int, budget: int, num_tokens: int, chunks: list[tuple[int, int]]
    ) -> tuple[int, int]:
        """Schedule the next chunk of `slot`; what is left of the budget, tokens of the batch."""
        request, start = int(self._request[slot]), int(self._computed[slot])
        chunk = min(budget, int(self._known_len[request]) - start)
        if chunk <= 0:
            return budget, num_tokens
        self._cache.extend(slot, start, start + chunk, num_tokens)
        again = min(int(self._computed_before[request]), start + chunk) - start
        self.counts.recomputed_tokens += max(again, 0)
        chunks.append((slot, chunk))
        return budget - chunk, num_tokens + chunk

    def _admit(self) -> int | None:
        """Admit the next request that fits; its slot."""
        free = np.flatnonzero(self._request == _FREE)
        if not len(free):
            return None
        for side, request in self._queue.candidates():
            known_len = int(self._known_len[request])
            match = self._cache.match(request, known_len)
            if match.is_being_filled or not self._fits(request, match.cached_len, known_len):
                continue
            slot = int(free[0])
            self._queue.pop(side)
            cached = self._cache.acquire(slot, request, known_len)
            self._request[slot], self._computed[slot] = request, cached
            self._side[slot], self._decoding[slot] = side, False
            self._age[slot] = self._num_admitted
            self._num_admitted += 1
            if self.num_cached[request] < 0:
                self.num_cached[request] = cached
            return slot
        return None

    def _fits(self, request: int, cached_len: int, known_len: int) -> bool:
        need = self._cache.admission_pages(request, cached_len, known_len)
        spare = 0.0
        if self.num_running:
            frac = _RECOVERY_FRAC if self._queue.num_preempted else _WATERMARK_FRAC
            spare = frac * self._cache.num_pages
        return need + spare <= self._cache.available_pages()

    def _batch(self, decodes: Int64, chunks: list[tuple[int, int]]) -> Batch:
        prefills = np.array(chunks, np.int32).reshape(-1, 2)
        slot = np.concatenate([decodes.astype(np.int32), prefills[:, 0]])
        num_tokens = np.concatenate([np.ones(len(decodes), np.int32), prefills[:, 1]])
        request, start = self._request[slot], self._computed[slot]
        needs_logits = start + num_tokens == self._known_len[request]
        return Batch(self._step, slot, request, start, num_tokens, needs_logits, len(decodes))
