// RMSNorm, with the addition to the residual stream that comes before it. rms_norm.py is the
// wrapper, rms_norm_reference.py says the same in plain torch.

#include <cstdint>

#include "rows.h"

namespace blendrun {

// Mirrored field by field by `NormCall` in rms_norm.py.
struct NormCall {
  void* hidden;         // [T, H] E, contiguous; becomes hidden + branch
  const void* branch;   // [T, H] E, contiguous, or null
  const void* weight;   // [H] E
  void* out;            // [T, H] E, contiguous
  int64_t num_rows;     // T
  int64_t row_len;      // H
  int64_t num_threads;
  float eps;
};

template <class E>
inline void add_rms_norm_row(E* hidden, const E* branch, const E* weight, E* out, int64_t n,
                             float eps) {
  if (branch != nullptr)
    for_vectors(n, [&](int64_t i, int64_t count) {
      store_part(hidden + i, load_part(hidden + i, count) + load_part(branch + i, count), count);
    });
  const float scale = inverse_rms(hidden, n, eps);
  for_vectors(n, [&](int64_t i, int64_t count) {
    store_part(out + i, load_part(hidden + i, count) * scale * load_part(weight + i, count), count);
  });
}

template <class E>
void add_rms_norm(const NormCall& call) {
  const auto* branch = static_cast<const E*>(call.branch);
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(call.num_threads)) \
    if (call.num_rows > 16)
  for (int64_t row = 0; row < call.num_rows; ++row) {
    const int64_t at = row * call.row_len;
    add_rms_norm_row(static_cast<E*>(call.hidden) + at, branch == nullptr ? nullptr : branch + at,
                     static_cast<const E*>(call.weight), static_cast<E*>(call.out) + at,
                     call.row_len, call.eps);
  }
}

}  // namespace blendrun

extern "C" {
void blendrun_add_rms_norm_bf16(const blendrun::NormCall* call) {
  blendrun::add_rms_norm<blendrun::Bf16>(*call);
}
void blendrun_add_rms_norm_f32(const blendrun::NormCall* call) {
  blendrun::add_rms_norm<float>(*call);
}
}  // extern "C"
