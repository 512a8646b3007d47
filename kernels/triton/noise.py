"""Uniform random numbers on the GPU, bit for bit those of `blendrun.engine.noise`.

A chain of splitmix64 finalisers over (seed, key, sample, position), in unsigned 64-bit integers.
"""

import triton
import triton.language as tl

_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def uniform(seed, key, sample, position):
    """float64 in [0, 1) with 53 random bits, from integers of any sign."""
    state = _mixed(seed.to(tl.int64).to(tl.uint64) + _STEP)
    state = _mixed(state + key.to(tl.int64).to(tl.uint64) + _STEP)
    state = _mixed(state + sample.to(tl.int64).to(tl.uint64) + _STEP)
    state = _mixed(state + position.to(tl.int64).to(tl.uint64) + _STEP)
    return (state >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def _mixed(z):
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)
