// Vectors over a row whose length need be no multiple of the lanes: its last vector is part full.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace blendrun {

inline VecF widen(const float* from) { return load<VecF>(from); }
inline VecF widen(const Bf16* from) {
  using VecH = uint16_t __attribute__((vector_size(2 * kLanes)));
  return (VecF)(__builtin_convertvector(load<VecH>(from), VecU) << 16);
}

// The first `count` <= kLanes elements at `from` as float32, zeros behind.
template <class E>
inline VecF load_part(const E* from, int64_t count) {
  if (count >= kLanes) return widen(from);
  E lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(E));
  return widen(lanes);
}

// Stores the first `count` <= kLanes lanes, rounded to nearest even.
template <class E>
inline void store_part(E* to, VecF value, int64_t count) {
  if (count >= kLanes) return store_narrow(to, value);
  E lanes[kLanes];
  store_narrow(lanes, value);
  std::memcpy(to, lanes, count * sizeof(E));
}

// Calls f(first, count) for each vector of a row of n elements.
template <class F>
inline void for_vectors(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, int64_t{kLanes});
  if (i < n) f(i, n - i);
}

// 1 / sqrt(mean of squares + eps) of a row.
template <class E>
inline float inverse_rms(const E* row, int64_t n, float eps) {
  VecF total{};
  for_vectors(n, [&](int64_t i, int64_t count) {
    const VecF x = load_part(row + i, count);
    total += x * x;
  });
  return 1.0f / __builtin_sqrtf(reduce_sum(total) / static_cast<float>(n) + eps);
}

}  // namespace blendrun
