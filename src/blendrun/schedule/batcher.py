"""The batcher: continuous batching with chunked prefill, one decision per engine step.

The decision is compiled (`schedule.step`); this is its handle. Pure bookkeeping over columns: it
knows lengths, slots and page counts, no tokens and no tensors, so that the engine and the
simulator run the same one.
"""

import time

import numpy as np
import numpy.typing as npt

from blendrun.cost.step_prices import StepPrices
from blendrun.errors import BackendError
from blendrun.schedule.batch import Batch, Freed
from blendrun.schedule.step.admit import too_large
from blendrun.schedule.step.begin import BatcherJob, BatchLimits, Steering, new_state
from blendrun.schedule.step.decide import OVER, STUCK, TOO_LARGE, commit, decide
from blendrun.schedule.step.finish import end_late, lacks_pages
from blendrun.schedule.step.handover import deposited, released, withdrawn
from blendrun.schedule.step.outputs import Outputs, observed
from blendrun.schedule.step.state import State
from blendrun.schedule.step.steering import begin, refreshed
from blendrun.tree.prefix_tree import Int32


class Batcher:
    """Runs the requests of a job through slots 0 to `max_seqs` - 1.

    `next_batch` → the backend computes it → `commit`, until `next_batch` gives None. Requests that
    do not fit into the pages even alone are left out: `too_large` names them.
    """

    def __init__(
        self,
        job: BatcherJob,
        limits: BatchLimits,
        prices: StepPrices,
        how: Steering,
        share: bool = True,
    ) -> None:
        """`share=False` gives every request pages of its own for all of its tokens."""
        state = new_state(job, limits, prices, how, share)
        self.too_large: Int32 = too_large(state, np.array(job.order, np.int32))
        if len(self.too_large):
            job = job.without(self.too_large)
            state = new_state(job, limits, prices, how, share)
        self._job, self._order = job, np.array(job.order, np.int32)
        # requests that share prefixes are neighbours here
        self._place = np.argsort(job.tree.leaf_order).astype(np.int32)
        self.state: State = begin(state, self._order)
        self.budget = how.budget
        self.learns = bool(self.state.limits["learns"])
        self.decide_s = 0.0  # what the last decision took

    @property
    def num_running(self) -> int:
        return int(self.state.counts["num_running"])

    @property
    def num_waiting(self) -> int:
        return int(self.state.counts["num_waiting"])

    @property
    def num_right(self) -> int:
        """Running requests that came from the right."""
        return int(self.state.counts["num_right"])

    @property
    def preemptions(self) -> int:
        """How often a request was sent back so far."""
        return int(self.state.counts["preemptions"])

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of prompts and outputs that preemption made necessary again so far."""
        return int(self.state.counts["recomputed"])

    @property
    def spared_tokens(self) -> int:
        """Context that the last batch need not read again: another of its decodes does."""
        return int(self.state.counts["spared"])

    @property
    def free_pages(self) -> int:
        return int(self.state.counts["free_pages"])

    @property
    def idle_pages(self) -> int:
        """Pages kept for waiting requests only."""
        return int(self.state.counts["idle_pages"])

    @property
    def lacks_pages(self) -> bool:
        """Whether the next step sends a request back."""
        return bool(lacks_pages(self.state))

    @property
    def num_cached(self) -> Int32:
        """Prompt tokens that were there when a request first came in, [N]; -1 before."""
        cached: Int32 = self.state.requests["num_cached"]
        return cached

    def next_batch(self) -> Batch | None:
        """The next step, or None when nothing runs and nothing waits.

        Raises:
            BackendError: requests wait but none can make progress.
        """
        at = time.perf_counter()
        if self.learns:
            self.state = refreshed(self.state, self._order)
        status = decide(self.state)
        self.decide_s = time.perf_counter() - at
        if status == OVER:
            return None
        if status == TOO_LARGE:
            raise BackendError("one request alone does not fit into the KV pages")
        if status == STUCK:
            raise BackendError(
                f"no progress: {self.num_running} running, {self.num_waiting} waiting, "
                f"{self.free_pages + self.idle_pages} of {self.state.limits['num_pages']} "
                "KV pages to be had"
            )
        return self._batch()

    def commit(self, batch: Batch, finished: npt.NDArray[np.bool_]) -> Freed:
        """Take over that `batch` was computed.

        Args:
            batch: the last one from `next_batch`.
            finished: [S] the sequence is over; every other one that had logits got a token.
        """
        commit(self.state, finished)
        return Freed(batch.slot[finished], self._dropped())

    def end(self, slots: Int32, output_len: Int32) -> Freed:
        """Requests that were committed as going on have ended, with outputs of these lengths [K].

        What was computed for them since is nobody's. After a `commit`, before `next_batch`.
        """
        end_late(self.state, slots, output_len)
        return Freed(slots, self._dropped())

    def withdraw(self, requests: Int32) -> tuple[Int32, Freed]:
        """Take those of `requests` away that wait and have not run; them, and pages given back."""
        self._order, taken = withdrawn(self.state, self._order, requests)
        return taken, Freed(taken[:0], self._dropped())

    def release(self, memory_s: float, room: int) -> tuple[Int32, Freed]:
        """Take running requests away as `released` does; them, and pages given back."""
        self._order, taken, slots = released(self.state, self._order, memory_s, room)
        return taken, Freed(slots, self._dropped())

    def deposit(self, requests: Int32, generated: Int32) -> Int32:
        """Let more requests of the job wait; those that do not fit even alone are left out.

        `generated`: output tokens that each of them has.
        """
        large = too_large(self.state, np.ascontiguousarray(requests, np.int32))
        fits = ~np.isin(requests, large)
        self.state, self._order = deposited(
            self.state, self._job, self._order, requests[fits], generated[fits]
        )
        self.learns = bool(self.state.limits["learns"])
        return large

    def observe(self, elsewhere: Outputs) -> None:
        """Learn from outputs of requests of the job that run or have ended elsewhere, too."""
        observed(self.state, elsewhere)

    def _batch(self) -> Batch:
        step, slots, counts = self.state.step, self.state.slots, self.state.counts
        # neighbours in the tree next to each other: attention finds their prefix in the caches
        decodes = step.slot[: counts["num_decodes"]]
        decodes[:] = decodes[np.argsort(self._place[slots["request"][decodes]])]
        slot = step.slot[: counts["num_batch"]].copy()
        num_tokens = step.num_tokens[: counts["num_batch"]].copy()
        request, start = slots["request"][slot], slots["computed"][slot]
        new_slot = step.admitted[: counts["num_admits"]].copy()
        return Batch(
            int(counts["step"]),
            slot,
            request,
            start,
            num_tokens,
            start + num_tokens == self.state.requests["known_len"][request],
            int(counts["num_decodes"]),
            Freed(step.preempted[: counts["num_preempts"]].copy(), self._dropped()),
            new_slot,
            slots["request"][new_slot],
            slots["own_start"][new_slot],
        )

    def _dropped(self) -> Int32:
        return self.state.step.dropped[: self.state.counts["num_dropped"]].copy()
