// The best entry of each row of logits, and whether all of them are finite, in one pass. argmax.py
// is the wrapper, argmax_reference.py says the same in plain torch.

#include <cstdint>

#include "rows.h"

namespace blendrun {

// Mirrored field by field by `ArgmaxCall` in argmax.py.
struct ArgmaxCall {
  const void* logits;   // [R, N] E, contiguous
  int64_t* best;        // [R] lowest index of the highest entry; undefined where not finite
  bool* finite;         // [R]
  int64_t num_rows;     // R
  int64_t row_len;      // N
  int64_t num_threads;
};

constexpr int64_t kStretch = 1024;  // entries whose maximum is kept, to find its place afterwards

// Multiplying by 0 turns infinity into NaN, and NaN stays in a sum.
template <class E>
inline void argmax_row(const E* row, int64_t n, int64_t& best, bool& finite) {
  float highest = -kInfinity;
  int64_t stretch = 0;
  VecF spoiled{};
  for (int64_t from = 0; from < n; from += kStretch) {
    const int64_t length = n - from < kStretch ? n - from : kStretch;
    VecF tops = broadcast(-kInfinity);
    for_vectors(length, [&](int64_t i, int64_t count) {
      VecF x = load_part(row + from + i, count);
      spoiled += x * 0.0f;
      if (count < kLanes) {
        for (int64_t lane = count; lane < kLanes; ++lane) x[lane] = -kInfinity;
      }
      tops = maximum(x, tops);
    });
    const float top = reduce_max(tops);
    if (top > highest) {
      highest = top;
      stretch = from;
    }
  }
  finite = reduce_sum(spoiled) == 0.0f;
  best = stretch;
  while (finite && to_float(row[best]) != highest) ++best;
}

template <class E>
void argmax(const ArgmaxCall& call) {
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(call.num_threads)) \
    if (call.num_rows > 1)
  for (int64_t row = 0; row < call.num_rows; ++row)
    argmax_row(static_cast<const E*>(call.logits) + row * call.row_len, call.row_len,
               call.best[row], call.finite[row]);
}

}  // namespace blendrun

extern "C" {
void blendrun_argmax_bf16(const blendrun::ArgmaxCall* call) {
  blendrun::argmax<blendrun::Bf16>(*call);
}
void blendrun_argmax_f32(const blendrun::ArgmaxCall* call) { blendrun::argmax<float>(*call); }
}  // extern "C"
