"""How long a call takes, when it is made again and again, on a CPU or on a device behind it."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

LEAST_CALLS, MEASURE_S = 3, 1.0  # for each figure
_BATCH_S = 0.01  # of calls between two waits for a device: then what waiting costs is little

Wait = Callable[[], object]  # until a device is through with all that it was given


def wait_for(device: torch.device) -> Wait | None:
    """None: the device is through when a call returns."""
    return None if device.type == "cpu" else partial(torch.cuda.synchronize, device)


def seconds_of(
    work: Callable[[], object], wait: Wait | None = None, measure_s: float | None = None
) -> float:
    """Median time of a call, after some that warm up; measured for `measure_s`, or MEASURE_S."""
    measure_s = MEASURE_S if measure_s is None else measure_s
    work()
    number = 1
    if wait is not None:
        while _batch_s(work, wait, number) < _BATCH_S and number < 1024:
            number *= 2
    seconds: list[float] = []
    spent_s = 0.0
    while len(seconds) < LEAST_CALLS or spent_s < measure_s:
        batch_s = _batch_s(work, wait, number)
        spent_s += batch_s
        seconds.append(batch_s / number)
    return statistics.median(seconds)


def _batch_s(work: Callable[[], object], wait: Wait | None, number: int) -> float:
    if wait is not None:
        wait()
    begin = time.perf_counter()
    for _ in range(number):
        work()
    if wait is not None:
        wait()
    return time.perf_counter() - begin


def calls_per_s(work: Callable[[], object], seconds: float) -> float:
    """Calls per second, made one after the other for `seconds` at least."""
    calls, begin = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        spent_s = time.perf_counter() - begin
        if spent_s >= seconds:
            return calls / spent_s
