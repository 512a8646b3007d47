// silu(gate) * up, the middle of the MLP. silu_mul.py is the wrapper, silu_mul_reference.py says
// the same in plain torch.

#include <cstdint>

#include "rows.h"
#include "silu.h"

namespace blendrun {

// Mirrored field by field by `SiluMulCall` in silu_mul.py.
struct SiluMulCall {
  const void* gate_up;  // [T, 2 I] E, contiguous, gate first
  void* out;            // [T, I] E, contiguous
  int64_t num_rows;     // T
  int64_t width;        // I
  int64_t num_threads;
};

template <class E>
void silu_mul(const SiluMulCall& call) {
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(call.num_threads)) \
    if (call.num_rows > 16)
  for (int64_t row = 0; row < call.num_rows; ++row) {
    const E* gate = static_cast<const E*>(call.gate_up) + row * 2 * call.width;
    E* out = static_cast<E*>(call.out) + row * call.width;
    for_vectors(call.width, [&](int64_t i, int64_t count) {
      const VecF up = load_part(gate + call.width + i, count);
      store_part(out + i, silu<E>(load_part(gate + i, count)) * up, count);
    });
  }
}

}  // namespace blendrun

extern "C" {
void blendrun_silu_mul_bf16(const blendrun::SiluMulCall* call) {
  blendrun::silu_mul<blendrun::Bf16>(*call);
}
void blendrun_silu_mul_f32(const blendrun::SiluMulCall* call) {
  blendrun::silu_mul<float>(*call);
}
}  // extern "C"
