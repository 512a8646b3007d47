"""How long a call takes, when it is made again and again."""

import statistics
import time
from collections.abc import Callable

LEAST_CALLS, MEASURE_S = 3, 1.0  # for each figure


def seconds_of(work: Callable[[], object], measure_s: float = MEASURE_S) -> float:
    """Median time of a call, of as many as take `measure_s`, after one that warms up."""
    work()
    seconds: list[float] = []
    while len(seconds) < LEAST_CALLS or sum(seconds) < measure_s:
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def calls_per_s(work: Callable[[], object], seconds: float) -> float:
    """Calls per second, made one after the other for `seconds` at least."""
    calls, begin = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        spent_s = time.perf_counter() - begin
        if spent_s >= seconds:
            return calls / spent_s
