// Layout of one layer's paged K and V caches, and the functions that fill and copy pages.
//
// Both caches are arrays of 32-bit words; a word holds R = kPerWord<E> elements (2 bfloat16 or 1
// float). B = gcd(page_size, 16) tokens are scored side by side, one per vector lane:
//
//   K  [page][kv_head][page_size / B][head_dim / R][B]   word = R neighbouring dims of a token
//   V  [page][kv_head][page_size / R][head_dim]          word = R neighbouring tokens of a dim
//
// so that the scores of 16 tokens need no horizontal sums, and P*V consumes R tokens per
// multiply-add. With an odd page_size V keeps R = 1: [page][kv_head][page_size][head_dim] of E.
//
// A slot is page * page_size + offset of the token in its page.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace blendrun {

constexpr int kBlock = 16;  // tokens that are scored together

inline int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

template <class E>
struct KvLayout {
  static constexpr int R = kPerWord<E>;

  int64_t page_size;      // tokens
  int64_t num_kv_heads;
  int64_t head_dim;       // elements, a multiple of 8
  int64_t block_width;    // B
  int64_t tokens_per_v;   // R, or 1 where page_size is odd

  KvLayout(int64_t page_size, int64_t num_kv_heads, int64_t head_dim)
      : page_size(page_size),
        num_kv_heads(num_kv_heads),
        head_dim(head_dim),
        block_width(gcd(static_cast<int>(page_size), kBlock)),
        tokens_per_v(page_size % R == 0 ? R : 1) {}

  // Elements before (page, head), the same in K and V.
  int64_t head_start(int64_t page, int64_t head) const {
    return (page * num_kv_heads + head) * page_size * head_dim;
  }
  // Element of dim 0 of a token in its head's K, and the distance from dim d to d + R.
  int64_t k_start(int64_t offset) const {
    return (offset / block_width) * block_width * head_dim + (offset % block_width) * R;
  }
  int64_t k_step() const { return block_width * R; }
  // Element of dim 0 of a token in its head's V, and the distance from dim d to d + 1.
  int64_t v_start(int64_t offset) const {
    return (offset / tokens_per_v) * tokens_per_v * head_dim + offset % tokens_per_v;
  }
  int64_t v_step() const { return tokens_per_v; }
};

// Copies one head of one token from plain rows into its slot.
template <class E>
inline void write_token(const KvLayout<E>& at, const E* k_row, const E* v_row, E* k_head,
                        E* v_head, int64_t offset) {
  constexpr int R = KvLayout<E>::R;
  E* k_to = k_head + at.k_start(offset);
  for (int64_t d = 0; d < at.head_dim; d += R, k_to += at.k_step())
    std::memcpy(k_to, k_row + d, 4);
  E* v_to = v_head + at.v_start(offset);
  for (int64_t d = 0; d < at.head_dim; ++d) v_to[d * at.v_step()] = v_row[d];
}

// The inverse of write_token.
template <class E>
inline void read_token(const KvLayout<E>& at, const E* k_head, const E* v_head, int64_t offset,
                       E* k_row, E* v_row) {
  constexpr int R = KvLayout<E>::R;
  const E* k_from = k_head + at.k_start(offset);
  for (int64_t d = 0; d < at.head_dim; d += R, k_from += at.k_step())
    std::memcpy(k_row + d, k_from, 4);
  const E* v_from = v_head + at.v_start(offset);
  for (int64_t d = 0; d < at.head_dim; ++d) v_row[d] = v_from[d * at.v_step()];
}

}  // namespace blendrun
