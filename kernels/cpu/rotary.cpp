// Rotary embedding of q and k, after their RMSNorm where the model has one, with k and v going
// straight into their pages. rotary.py is the wrapper, rotary_reference.py says the same in plain
// torch.

#include <cstdint>
#include <vector>

#include "kv_cache.h"
#include "rows.h"

namespace blendrun {

// Mirrored field by field by `RotaryCall` in rotary.py. Last dims are contiguous.
struct RotaryCall {
  void* q;                   // [T, Hq, D] E, rotated in place
  const void* k;             // [T, Hkv, D] E
  const void* v;             // [T, Hkv, D] E
  const void* q_norm;        // [D] E, or null
  const void* k_norm;        // [D] E, or null
  const float* cos;          // [T, D / 2]
  const float* sin;          // [T, D / 2]
  void* k_cache;             // one layer, layout in kv_cache.h
  void* v_cache;
  const int32_t* token_idx;  // [W] row of k and v for each slot
  const int64_t* slots;      // [W] page * page_size + offset
  int64_t num_tokens;        // T
  int64_t num_slots;         // W
  int64_t q_row_stride;      // elements
  int64_t q_head_stride;
  int64_t k_row_stride;
  int64_t k_head_stride;
  int64_t v_row_stride;
  int64_t v_head_stride;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  int64_t num_threads;
  float eps;                 // of the norms
};

// One head of one token; pairs are (i, i + D / 2). `out` may be `x`.
template <class E>
inline void rotate_head(const E* x, const E* norm, float eps, const float* cos, const float* sin,
                        int64_t head_dim, E* out) {
  const int64_t half = head_dim / 2;
  const float scale = norm == nullptr ? 1.0f : inverse_rms(x, head_dim, eps);
  for_vectors(half, [&](int64_t i, int64_t count) {
    VecF first = load_part(x + i, count), second = load_part(x + half + i, count);
    if (norm != nullptr) {
      first = first * scale * load_part(norm + i, count);
      second = second * scale * load_part(norm + half + i, count);
    }
    const VecF c = load_part(cos + i, count), s = load_part(sin + i, count);
    store_part(out + i, first * c - second * s, count);
    store_part(out + half + i, second * c + first * s, count);
  });
}

template <class E>
void rotate_and_write(const RotaryCall& call) {
  const KvLayout<E> layout(call.page_size, call.num_kv_heads, call.head_dim);
  const int64_t half = call.head_dim / 2;
#pragma omp parallel num_threads(static_cast<int>(call.num_threads)) \
    if (call.num_tokens + call.num_slots > 16)
  {
    std::vector<E> rotated(call.head_dim);
#pragma omp for schedule(static) nowait
    for (int64_t t = 0; t < call.num_tokens; ++t)
      for (int64_t head = 0; head < call.num_q_heads; ++head) {
        E* q = static_cast<E*>(call.q) + t * call.q_row_stride + head * call.q_head_stride;
        rotate_head(q, static_cast<const E*>(call.q_norm), call.eps, call.cos + t * half,
                    call.sin + t * half, call.head_dim, q);
      }
#pragma omp for schedule(static)
    for (int64_t w = 0; w < call.num_slots; ++w) {
      const int64_t t = call.token_idx[w];
      for (int64_t head = 0; head < call.num_kv_heads; ++head) {
        const E* k = static_cast<const E*>(call.k) + t * call.k_row_stride +
                     head * call.k_head_stride;
        const E* v = static_cast<const E*>(call.v) + t * call.v_row_stride +
                     head * call.v_head_stride;
        rotate_head(k, static_cast<const E*>(call.k_norm), call.eps, call.cos + t * half,
                    call.sin + t * half, call.head_dim, rotated.data());
        const int64_t start = layout.head_start(call.slots[w] / call.page_size, head);
        write_token(layout, rotated.data(), v, static_cast<E*>(call.k_cache) + start,
                    static_cast<E*>(call.v_cache) + start, call.slots[w] % call.page_size);
      }
    }
  }
}

}  // namespace blendrun

extern "C" {
void blendrun_rotate_and_write_bf16(const blendrun::RotaryCall* call) {
  blendrun::rotate_and_write<blendrun::Bf16>(*call);
}
void blendrun_rotate_and_write_f32(const blendrun::RotaryCall* call) {
  blendrun::rotate_and_write<float>(*call);
}
}  // extern "C"
