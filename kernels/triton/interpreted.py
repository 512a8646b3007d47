"""Operations that Triton's interpreter gets wrong in bfloat16 and float8 (seen in 3.9), mended.

It truncates, or rounds halves up, where a GPU rounds to nearest even, and multiplies matrices of
bfloat16 as if their bits were integers. Compiled kernels contain nothing of this.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """float32 `x` in `dtype`, rounded to nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    if INTERPRETED and dtype == tl.float8e4nv:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFFF + ((bits >> 20) & 1)
        normal = (bits >> 20 << 20).to(tl.float32, bitcast=True)
        # below 2^-6 its numbers are 2^-9 apart, as are those of float32 around 1.5 * 2^14
        subnormal = (x + 24576.0) - 24576.0
        x = tl.where(tl.abs(x) < 0.015625, subnormal, normal)
    return x.to(dtype)


@triton.jit
def matmul(a, b, acc):
    """acc + a @ b in float32.

    float32 operands become three products of TF32 each, whose error is near that of float32;
    products outside matrix instructions spill registers. The interpreter multiplies in float32.
    """
    if INTERPRETED and a.dtype == tl.bfloat16:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="tf32x3")
