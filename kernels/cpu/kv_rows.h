// Moves plain rows of K and V into slots of the cache and back, and whole pages.
#pragma once

#include <cstdint>
#include <cstring>

#include "kv_cache.h"

namespace blendrun {

// Mirrored by `RowsCall` in attention_binding.py. Rows of plain K and V against slots of one layer.
struct RowsCall {
  void* k;                   // [rows, Hkv, D] E, last dim contiguous
  void* v;
  void* k_cache;             // one layer, layout in kv_cache.h
  void* v_cache;
  const int32_t* row_idx;    // [W] row of k and v for each slot; null: row w
  const int64_t* slots;      // [W] page * page_size + offset
  int64_t num_slots;         // W
  int64_t k_row_stride;      // elements
  int64_t k_head_stride;
  int64_t v_row_stride;
  int64_t v_head_stride;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  int64_t num_threads;
};

// Calls f(k_row, v_row, k_head, v_head, offset) for every (slot, KV head).
template <class E, class F>
void for_rows(const RowsCall& call, const KvLayout<E>& layout, F&& f) {
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(call.num_threads)) \
    if (call.num_slots > 16)
  for (int64_t w = 0; w < call.num_slots; ++w) {
    const int64_t row = call.row_idx == nullptr ? w : call.row_idx[w];
    const int64_t page = call.slots[w] / call.page_size;
    for (int64_t head = 0; head < call.num_kv_heads; ++head) {
      const int64_t start = layout.head_start(page, head);
      f(static_cast<E*>(call.k) + row * call.k_row_stride + head * call.k_head_stride,
        static_cast<E*>(call.v) + row * call.v_row_stride + head * call.v_head_stride,
        static_cast<E*>(call.k_cache) + start, static_cast<E*>(call.v_cache) + start,
        call.slots[w] % call.page_size);
    }
  }
}

template <class E>
void write_rows(const RowsCall& call) {
  const KvLayout<E> layout(call.page_size, call.num_kv_heads, call.head_dim);
  for_rows<E>(call, layout, [&](const E* k, const E* v, E* k_head, E* v_head, int64_t offset) {
    write_token(layout, k, v, k_head, v_head, offset);
  });
}

template <class E>
void read_rows(const RowsCall& call) {
  const KvLayout<E> layout(call.page_size, call.num_kv_heads, call.head_dim);
  for_rows<E>(call, layout, [&](E* k, E* v, const E* k_head, const E* v_head, int64_t offset) {
    read_token(layout, k_head, v_head, offset, k, v);
  });
}

// Copies page src[i] onto page dst[i] in every layer of one cache [num_layers][num_pages] of
// pages of page_bytes. No page may be both source and destination.
inline void copy_pages(char* cache, int64_t num_layers, int64_t num_pages, int64_t page_bytes,
                       const int32_t* src, const int32_t* dst, int64_t num_copies,
                       int64_t num_threads) {
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(num_threads)) \
    if (num_layers * num_copies > 16)
  for (int64_t i = 0; i < num_layers * num_copies; ++i) {
    char* layer = cache + i / num_copies * num_pages * page_bytes;
    const int64_t c = i % num_copies;
    std::memcpy(layer + dst[c] * page_bytes, layer + src[c] * page_bytes, page_bytes);
  }
}

}  // namespace blendrun
