"""Whether this CPU is faster with products and KV reads at once than with one after the other.

At once, each has half of the cores to itself; one after the other, each has all of them. The gain
is the sum of both rates at once, each over its rate with all cores: 1 where both grow with the
cores, up to 2 where one of them needs only a few. Rounds are repeated, all three rates in each,
so that what drifts during the measurement drifts in both.
"""

import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import torch

from blendrun.engine.stopwatch import calls_per_s

ROUNDS, ROUND_S = 7, 0.4  # seconds of each rate
# What overlapping must gain to be worth it: more than what splitting a step in two costs its
# products (a tenth at 256 tokens), and more than threads that need not wait for each other gain.
LEAST_GAIN = 1.15
_MOST_EXPONENT = 8.0  # beyond, the exponent is noise


@dataclass(frozen=True, slots=True)
class Together:
    """Rates at once over rates with all cores alone, by round."""

    products_frac: tuple[float, ...]
    reads_frac: tuple[float, ...]

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(a + b for a, b in zip(self.products_frac, self.reads_frac, strict=True))

    @property
    def gain(self) -> float:
        """Work done at once, over the same work one after the other in the same time."""
        return statistics.median(self.gains)

    @property
    def overlaps(self) -> bool:
        """Whether three rounds of four gain enough: more than noise, more than a lucky round."""
        return statistics.quantiles(self.gains, n=4)[0] > LEAST_GAIN

    @property
    def exponent(self) -> float:
        """The q with which (products^q + reads^q)^(1/q) is the time of both at once; at least 1.

        Both fractions a, b fill the same time, so a^q + b^q = 1.
        """
        if not self.overlaps:
            return 1.0
        products, reads = map(statistics.median, (self.products_frac, self.reads_frac))
        return exponent_of(products, reads)


def exponent_of(products: float, reads: float) -> float:
    """The q with which products^q + reads^q is 1; at least 1, at most what noise allows to tell."""
    low, high = 1.0, _MOST_EXPONENT
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if products**middle + reads**middle > 1 else (low, middle)
    return round(low, 2)


def measure_together(
    products: Callable[[], object], reads: Callable[[], object]
) -> Together | None:
    """None: one thread cannot do two things."""
    threads = torch.get_num_threads()
    if threads < 2:
        return None
    halves = _halves(threads)
    start = Barrier(2)

    def half(work: Callable[[], object], cores: set[int], seconds: float) -> float:
        """Rate of `work` on some of the cores; thread count and cores are this thread's alone."""
        torch.set_num_threads(threads // 2)
        if cores:
            os.sched_setaffinity(0, cores)
        try:
            with torch.inference_mode():
                work()
                start.wait()
                return calls_per_s(work, seconds)
        except BaseException:
            start.abort()  # the other half waits for this one
            raise

    products_frac, reads_frac = [], []
    # a pool for each, so that the threads that torch starts below keep their cores
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for _ in range(ROUNDS):
            alone = calls_per_s(products, ROUND_S), calls_per_s(reads, ROUND_S)
            futures = [
                pool.submit(half, work, cores, 2 * ROUND_S)
                for pool, work, cores in zip((one, other), (products, reads), halves, strict=True)
            ]
            at_once = [future.result() for future in futures]
            products_frac.append(at_once[0] / alone[0])
            reads_frac.append(at_once[1] / alone[1])
    torch.set_num_threads(threads)  # threads to come take what was set last, wherever
    return Together(tuple(products_frac), tuple(reads_frac))


def _halves(threads: int) -> tuple[set[int], set[int]]:
    """Two halves of the cores; empty where the system cannot bind threads, or has them bound."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) < threads:
        return set(), set()
    middle = len(cores) // 2
    return set(cores[:middle]), set(cores[middle:])
