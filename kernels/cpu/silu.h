// x * sigmoid(x) of a vector.
#pragma once

#include "simd.h"

namespace blendrun {

// x / (1 + 2^(-x log2 e)); the power is infinite far below x = -87, and the quotient 0.
template <class E>
inline VecF silu(VecF x) {
  constexpr float kLog2E = 1.44269504088896f;
  return x * reciprocal<E>(1.0f + exp2_bounded<E>(x * -kLog2E));
}

}  // namespace blendrun
