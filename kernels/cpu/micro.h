// What inner loops are made of: counts that the compiler must know, so that values stay in
// registers, and lines that are asked for before they are read.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace blendrun {

constexpr int kMicroRows = kVectorRegisters == 32 ? 6 : 3;  // rows times 4 vectors fill registers
constexpr int kMicroVecs = 4;
constexpr int kLineWords = 16;  // of a cache line

// Into the L2 cache: it can wait for more lines at a time than L1 (twice the bandwidth on Zen 4).
inline void prefetch(const uint32_t* line) { __builtin_prefetch(line, 0, 2); }

// Calls f(std::integral_constant<int, n>) for a run-time 1 <= n <= Max.
template <int Max, class F>
inline void with_constant(int n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, f);
  }
  f(std::integral_constant<int, Max>{});
}

// Calls f(first_row, row_count) over groups of at most kMicroRows rows, as even as can be.
template <class F>
inline void for_row_groups(int num_rows, F&& f) {
  const int num_groups = (num_rows + kMicroRows - 1) / kMicroRows;
  for (int g = 0; g < num_groups; ++g) {
    const int first = num_rows * g / num_groups;
    f(first, num_rows * (g + 1) / num_groups - first);
  }
}

}  // namespace blendrun
