"""Two operations that Triton's interpreter gets wrong in bfloat16 (seen in 3.9), mended.

It truncates where a GPU rounds to nearest, and multiplies matrices of bfloat16 as if their bits
were integers. Compiled kernels contain nothing of this.
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
    return x.to(dtype)


@triton.jit
def matmul(a, b, acc):
    """acc + a @ b in float32; float32 operands are not cut to TF32."""
    if INTERPRETED and a.dtype == tl.bfloat16:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="tf32x3")
