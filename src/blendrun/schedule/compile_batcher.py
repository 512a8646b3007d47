"""Compiles the batcher ahead of a run: in one process, however many need it."""

import time

import numpy as np

from blendrun.compiled import is_first_use, one_at_a_time
from blendrun.cost.step_prices import StepPrices
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.begin import BatcherJob, BatchLimits, Steering
from blendrun.tree.build import build_tree


def compile_batcher() -> float:
    """Compile what a run calls, unless that was done before; waits for a process that does it.

    Returns:
        The seconds that took.
    """
    begin = time.monotonic()
    if is_first_use():
        with one_at_a_time():
            if is_first_use():
                _run_one_request()
    return time.monotonic() - begin


def _run_one_request() -> None:
    one, nothing = np.ones(1), np.zeros(1, np.int32)
    job = BatcherJob(
        tree=build_tree(np.zeros(1, np.int32), np.array([0, 1])),
        order=nothing,
        max_output=nothing + 1,
        planned_output=one,
        learned=np.ones(1, np.bool_),
        compute_s=one,
        memory_s=one,
        prefill_s=one,
        footprint=one,
        root_density=1.0,
    )
    prices = StepPrices(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    batcher = Batcher(job, BatchLimits(4, 16, 16, 1), prices, Steering(learns=True))
    while (batch := batcher.next_batch()) is not None:
        batcher.commit(batch, np.zeros(1, np.bool_))
        if not batcher.lacks_pages:
            batcher.end(batch.slot, np.ones(1, np.int32))
