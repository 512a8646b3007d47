"""The record of each step: what it did, what the cost model gives it, how long it took.

A step begins when the one before it was seen to be over, or, where nothing was in flight, when it
was decided; it ends when it is seen to be over. What its kernels leave of that time is scheduling;
where a step was seen late, kernels of the next ran in its time, and are taken off the next one's.
"""

from typing import NamedTuple

import numpy as np

from blendrun.cost.cost_model import CostModel
from blendrun.engine.step_log import StepLog, StepRecord
from blendrun.engine.step_result import EngineCounts, StepResult
from blendrun.schedule.batch import Batch
from blendrun.schedule.batcher import Batcher


class Predicted(NamedTuple):
    compute_s: float
    memory_s: float  # KV reads


class Entry(NamedTuple):
    """What is known of a step once it is committed; see `StepRecord`."""

    batch: Batch
    begin_s: float  # when it was decided, on the monotonic clock
    predicted: Predicted
    decide_s: float
    counts: EngineCounts
    running_left: int
    waiting: int
    pages_idle: int


class StepBook:
    def __init__(
        self, cost: CostModel, num_pages: int, attempt: int, rank: int, begin_s: float
    ) -> None:
        self._cost, self._num_pages = cost, num_pages
        self._attempt, self._rank, self._begin_s = attempt, rank, begin_s
        self._seen_s = begin_s  # when the last step was seen to be over
        self._owed_s = 0.0  # kernels that ran in the time of steps before their own
        self.log = StepLog()
        self.stepped_s = self.expected_s = 0.0  # that all steps took, and should have

    def predict(self, batch: Batch, spared_tokens: int) -> Predicted:
        """Compute and KV-read seconds that the cost model gives this step.

        `spared_tokens`: context that need not be read again, another decode reads it.
        """
        n = batch.num_decodes
        end = batch.start + batch.num_tokens
        compute_s = self._cost.prefill_s(batch.start[n:], end[n:]).sum()
        compute_s += self._cost.head_s(int(batch.needs_logits.sum()))
        # a decode's attention arithmetic counts as memory time
        compute_s += n * self._cost.prefill_s(0, 1)
        read_tokens = end[:n].sum(dtype=np.int64) - self._cost.spared_frac * spared_tokens
        return Predicted(float(compute_s), float(read_tokens * self._cost.context_s))

    def add(
        self, entry: Entry, result: StepResult, num_tokens: int, num_ended: int, seen_s: float
    ) -> float:
        """Note a step that was seen to be over at `seen_s`; the seconds that it took.

        `num_tokens` of those it drew are somebody's, and ended `num_ended` answers.
        """
        begin_s = max(entry.begin_s, self._seen_s)
        self._seen_s = seen_s
        step_s = max(seen_s - begin_s, 0.0)
        counts = result.counts or entry.counts
        kernels_s = result.attention_s + result.model_s + result.sample_s
        left_s = step_s - kernels_s - self._owed_s
        self._owed_s = max(-left_s, 0.0)
        self.log.add(
            StepRecord(
                attempt=self._attempt,
                rank=self._rank,
                step=entry.batch.step,
                start_s=begin_s - self._begin_s,
                step_s=step_s,
                prefill_tokens=counts.prefill_tokens,
                decode_tokens=counts.decode_tokens,
                output_tokens=num_tokens,
                running=counts.running,
                running_left=entry.running_left,
                waiting=entry.waiting,
                finished=num_ended,
                pages_used=counts.pages_used,
                pages_idle=entry.pages_idle,
                num_pages=self._num_pages,
                preemptions=counts.preemptions,
                recomputed_tokens=counts.recomputed_tokens,
                predicted_compute_s=entry.predicted.compute_s,
                predicted_memory_s=entry.predicted.memory_s,
                decide_s=entry.decide_s,
                schedule_s=max(left_s, 0.0),
                attention_s=result.attention_s,
                model_s=result.model_s,
                sample_s=result.sample_s,
            )
        )
        self._note_pace(step_s, entry)
        return step_s

    def _note_pace(self, step_s: float, entry: Entry) -> None:
        cost, (compute_s, memory_s) = self._cost, entry.predicted
        weight_s = cost.step_weight_read_s(int(entry.batch.num_tokens.sum()))
        self.stepped_s += step_s
        busy_s = cost.with_weight_floor(compute_s, weight_s)
        self.expected_s += float(cost.overlapped_s(busy_s, memory_s))


def counts_of(
    batch: Batch, batcher: Batcher, num_pages: int, before: tuple[int, int]
) -> EngineCounts:
    """What `batch` did, at its end; `before` it: preemptions, and tokens computed again."""
    preemptions, recomputed_tokens = before
    return EngineCounts(
        batch.num_prefill_tokens,
        batch.num_decodes,
        batcher.num_running,
        num_pages - batcher.free_pages,
        batcher.preemptions - preemptions,
        batcher.recomputed_tokens - recomputed_tokens,
    )
