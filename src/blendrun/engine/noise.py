"""Uniform random numbers that depend on four counters and on nothing else.

A chain of splitmix64 finalisers over (seed, key, sample, position): no state, so the order in
which requests run cannot change a draw.
"""

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(
    seed: np.ndarray, key: np.ndarray, sample: np.ndarray, position: np.ndarray
) -> np.ndarray:
    """float64 [S] in [0, 1) with 53 random bits, from integer arrays [S] (any sign)."""
    state = np.zeros(np.shape(seed), dtype=np.uint64)
    for counter in (seed, key, sample, position):
        state = _mix(state + np.asarray(counter).astype(np.int64).view(np.uint64) + _STEP)
    return np.asarray((state >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
