// Paged attention on the CPU: decode rows and chunked prefill in one call, grouped heads, bfloat16
// or float32, float32 accumulation. attention.py is the wrapper, attention_reference.py says the
// same in plain torch.
//
// The work is cut into items (query block of one sequence, KV head, range of the context). An item
// walks its context tile by tile with an online softmax. Only a sequence with a single query block
// has its context split over items; the parts are merged afterwards. How a sequence is cut depends
// on that sequence alone, so its results depend neither on its neighbours nor on the threads.

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention_tile.h"
#include "kv_cache.h"
#include "simd.h"

namespace blendrun {

// Mirrored field by field by `_AttentionCall` in attention.py.
struct AttentionCall {
  const void* q;               // [T, Hq, D] E, last dim contiguous
  void* out;                   // [T, Hq, D] E, contiguous
  const void* k_cache;         // one layer, layout in kv_cache.h
  const void* v_cache;         // one layer
  const int32_t* q_indptr;     // [S + 1] first query row of each sequence
  const int32_t* context_len;  // [S] tokens, the query rows included
  const int32_t* page_table;   // [S, max_pages] page of each page_size tokens of the context
  int64_t num_seqs;            // S
  int64_t max_pages;           // row length of page_table
  int64_t q_row_stride;        // elements from one token of q to the next
  int64_t q_head_stride;       // elements from one head of q to the next
  int64_t num_q_heads;         // Hq, a multiple of num_kv_heads
  int64_t num_kv_heads;        // Hkv
  int64_t head_dim;            // D, a multiple of 8, >= 16
  int64_t page_size;           // tokens
  int64_t num_threads;
  float scale;                 // multiplies q . k before the (natural) exponential, > 0
};

constexpr int64_t kBlockRows = 48;       // rows (queries x group) of a query block, about
constexpr int64_t kSplitTokens = 1024;   // context of one item of a split sequence, about
constexpr int64_t kMaxTurn = 8;          // items that a thread takes at a time, at most

struct Item {
  int64_t seq;
  int64_t kv_head;
  int64_t first_query;    // row of q
  int64_t num_queries;
  int64_t first_limit;    // tokens that the first query may see; each further one sees one more
  int64_t begin, end;     // range of the context
  int64_t first_partial;  // row in Partials where the result goes, or -1: it is final
  int64_t num_parts;      // items that share first_partial's query block
};

// ---- cutting the work ----------------------------------------------------------------------

struct WorkList {
  std::vector<Item> items;   // most costly first
  std::vector<Item> merges;  // one per split (query block, KV head): its first item
  int64_t num_partials = 0;  // rows of partial results
};

inline int64_t item_rows(const AttentionCall& call, const Item& item) {
  return item.num_queries * (call.num_q_heads / call.num_kv_heads);
}

// Adds the items of one query block: one, or `num_parts` over equal ranges of the context.
inline void add_query_block(const AttentionCall& call, Item block, int64_t num_parts,
                            WorkList& work) {
  const int64_t context = block.end;
  const int64_t tiles = (context + kTile - 1) / kTile;
  block.num_parts = num_parts;
  for (int64_t part = 0; part < num_parts; ++part) {
    Item item = block;
    item.begin = tiles * part / num_parts * kTile;
    item.end = std::min(context, tiles * (part + 1) / num_parts * kTile);
    if (num_parts > 1) {
      item.first_partial = work.num_partials;
      work.num_partials += item_rows(call, item);
      if (part == 0) work.merges.push_back(item);
    }
    work.items.push_back(item);
  }
}

// Most costly first, so that no thread is left with a long item at the end; among items of about
// the same cost the given order stays, because neighbours often share pages.
inline void sort_by_cost(const AttentionCall& call, std::vector<Item>& items) {
  const auto cost_class = [&](const Item& item) {
    const int64_t cost = item_rows(call, item) * (item.end - item.begin) + 1;
    return 63 - __builtin_clzll(static_cast<unsigned long long>(cost));
  };
  std::stable_sort(items.begin(), items.end(), [&](const Item& a, const Item& b) {
    return cost_class(a) > cost_class(b);
  });
}

inline WorkList cut_work(const AttentionCall& call) {
  WorkList work;
  const int64_t group = call.num_q_heads / call.num_kv_heads;
  const int64_t block_queries = std::max<int64_t>(1, kBlockRows / group);
  for (int64_t seq = 0; seq < call.num_seqs; ++seq) {
    const int64_t first = call.q_indptr[seq];
    const int64_t count = call.q_indptr[seq + 1] - first;
    const int64_t context = call.context_len[seq];
    const bool one_block = count <= block_queries;
    const int64_t num_parts =
        one_block ? std::max<int64_t>(1, (context + kSplitTokens / 2) / kSplitTokens) : 1;
    for (int64_t head = 0; head < call.num_kv_heads; ++head) {
      for (int64_t at = 0; at < count; at += block_queries) {
        const int64_t queries = std::min(block_queries, count - at);
        const int64_t limit = context - count + at + 1;
        const Item block{seq, head, first + at, queries, limit, 0, limit + queries - 1, -1, 1};
        add_query_block(call, block, num_parts, work);
      }
    }
  }
  sort_by_cost(call, work.items);
  return work;
}

// ---- memory of one thread ------------------------------------------------------------------

// A buffer of cache lines that only grows, handed out piece by piece.
class Arena {
 public:
  void reset(size_t num_bytes) {
    used_ = 0;
    if (num_bytes <= size_) return;
    size_ = (num_bytes + 63) / 64 * 64;
    buffer_.reset(static_cast<char*>(std::aligned_alloc(64, size_)));
    if (!buffer_) std::abort();
  }
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(buffer_.get() + used_);
    used_ += padded<T>(count);
    return piece;
  }
  template <class T>
  static size_t padded(int64_t count) {
    return (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> buffer_;
  size_t size_ = 0;
  size_t used_ = 0;
};

template <class E>
struct Scratch {
  E* q;             // [rows][D]
  float* scores;    // [rows][kTile]
  E* probs;         // [rows][kTile]
  float* out;       // [rows][out_len]
  RowState* states; // [rows]
  E* k_copy;        // [kTile][D] in block layout, for pages that are no multiple of 16
  E* v_copy;        // [kTile][D]

  Scratch(Arena& arena, int64_t rows, int64_t head_dim, int64_t out_len) {
    arena.reset(Arena::padded<E>(rows * head_dim) + Arena::padded<float>(rows * kTile) +
                Arena::padded<E>(rows * kTile) + Arena::padded<float>(rows * out_len) +
                Arena::padded<RowState>(rows) + 2 * Arena::padded<E>(kTile * head_dim));
    q = arena.take<E>(rows * head_dim);
    scores = arena.take<float>(rows * kTile);
    probs = arena.take<E>(rows * kTile);
    out = arena.take<float>(rows * out_len);
    states = arena.take<RowState>(rows);
    k_copy = arena.take<E>(kTile * head_dim);
    v_copy = arena.take<E>(kTile * head_dim);
  }
};

// ---- tiles of pages ------------------------------------------------------------------------

// One sequence and KV head of the cache, addressed by the token's position in the context.
template <class E>
class Context {
 public:
  Context(const AttentionCall& call, const Item& item)
      : layout_(call.page_size, call.num_kv_heads, call.head_dim),
        k_cache_(static_cast<const E*>(call.k_cache)),
        v_cache_(static_cast<const E*>(call.v_cache)),
        pages_(call.page_table + item.seq * call.max_pages),
        kv_head_(item.kv_head) {}

  // Blocks of K of tokens [begin, end): the pages themselves where they hold whole blocks, else
  // copies. What lies behind `end` may be anything: it only spoils scores that are masked.
  TileBlocks k_tile(int64_t begin, int64_t end, E* copies) const {
    return blocks(begin, end, [&](int64_t token, int count, int64_t at) {
      return pages_hold_blocks() ? k_at(token) : copy_k(token, count, copies + at);
    });
  }

  // The same of V, but here a last block that is not full is always a copy with zeros behind
  // `end`: in the page there may be NaN, which a probability of 0 would not silence.
  TileBlocks v_tile(int64_t begin, int64_t end, E* copies) const {
    return blocks(begin, end, [&](int64_t token, int count, int64_t at) {
      return pages_hold_blocks() && count == kBlock ? v_at(token)
                                                    : copy_v(token, count, copies + at);
    });
  }

  // Where K of a tile will be read from, for prefetching; pointers behind `end` are not new.
  TileBlocks k_ahead(int64_t begin, int64_t end, const TileBlocks& otherwise) const {
    TileBlocks ahead = otherwise;
    for (int b = 0; b < kTileBlocks && begin + b * kBlock < end; ++b)
      ahead.at[b] = words(k_at(begin + b * kBlock));
    return ahead;
  }

 private:
  static const uint32_t* words(const E* from) { return reinterpret_cast<const uint32_t*>(from); }

  bool pages_hold_blocks() const { return layout_.block_width == kBlock; }

  // Collects find(first token, number of tokens, element in a tile) of each block.
  template <class F>
  TileBlocks blocks(int64_t begin, int64_t end, F&& find) const {
    TileBlocks tile;
    tile.num_blocks = static_cast<int>((end - begin + kBlock - 1) / kBlock);
    for (int b = 0; b < kTileBlocks; ++b) {
      const int64_t token = begin + std::min(b, tile.num_blocks - 1) * kBlock;
      const int count = static_cast<int>(std::min<int64_t>(kBlock, end - token));
      tile.at[b] = b < tile.num_blocks ? words(find(token, count, b * kBlock * layout_.head_dim))
                                       : tile.at[tile.num_blocks - 1];
    }
    return tile;
  }

  int64_t head_start(int64_t token) const {
    return layout_.head_start(pages_[token / layout_.page_size], kv_head_);
  }
  const E* k_at(int64_t token) const {
    return k_cache_ + head_start(token) + layout_.k_start(token % layout_.page_size);
  }
  const E* v_at(int64_t token) const {
    return v_cache_ + head_start(token) + layout_.v_start(token % layout_.page_size);
  }

  // Gathers up to 16 tokens of K into one block.
  const E* copy_k(int64_t token, int count, E* to) const {
    constexpr int R = kPerWord<E>;
    const int64_t width = layout_.block_width;
    for (int i = 0; i < count; i += static_cast<int>(width)) {
      const E* from = k_at(token + i);
      for (int64_t w = 0; w < layout_.head_dim / R; ++w)
        std::memcpy(to + (w * kBlock + i) * R, from + w * width * R, width * R * sizeof(E));
    }
    return to;
  }

  // Gathers up to 16 tokens of V into one block, zeros behind the last.
  const E* copy_v(int64_t token, int count, E* to) const {
    constexpr int R = kPerWord<E>;
    const int64_t dims = layout_.head_dim;
    std::memset(to, 0, kBlock * dims * sizeof(E));
    for (int i = 0; i < count; ++i) {
      const E* from = v_at(token + i);
      E* column = to + (i / R) * dims * R + i % R;
      for (int64_t d = 0; d < dims; ++d) column[d * R] = from[d * layout_.v_step()];
    }
    return to;
  }

  KvLayout<E> layout_;
  const E* k_cache_;
  const E* v_cache_;
  const int32_t* pages_;
  int64_t kv_head_;
};

// ---- one item ------------------------------------------------------------------------------

// Rows of the results of split items, before they are merged.
struct Partials {
  float* out;        // [num_partials][D], P*V relative to the row's own maximum
  RowState* states;  // [num_partials]
};

template <class E>
inline void pack_queries(const AttentionCall& call, const Item& item, E* to) {
  const int64_t group = call.num_q_heads / call.num_kv_heads;
  const E* q = static_cast<const E*>(call.q);
  for (int64_t i = 0; i < item.num_queries; ++i)
    for (int64_t g = 0; g < group; ++g, to += call.head_dim)
      std::memcpy(to,
                  q + (item.first_query + i) * call.q_row_stride +
                      (item.kv_head * group + g) * call.q_head_stride,
                  call.head_dim * sizeof(E));
}

// out[0 .. D) = from * factor, where `from` has the overlapping last vector of vector_dim().
template <class T>
inline void unpack_row(const float* from, float factor, int64_t head_dim, T* out) {
  for (int64_t v = 0; v < num_vectors(head_dim); ++v)
    store_narrow(out + vector_dim(v, head_dim), load<VecF>(from + v * kLanes) * factor);
}

// Where the result of row r of an item belongs in `out`.
template <class E>
inline E* out_row(const AttentionCall& call, const Item& item, int64_t r) {
  const int64_t group = call.num_q_heads / call.num_kv_heads;
  const int64_t query = item.first_query + r / group;
  const int64_t head = item.kv_head * group + r % group;
  return static_cast<E*>(call.out) + (query * call.num_q_heads + head) * call.head_dim;
}

// Computes one item. `next` is what this thread does afterwards (or `item` again): the last tile
// prefetches its first one.
template <class E>
inline void run_item(const AttentionCall& call, const Item& item, const Item& next,
                     const Partials& partials) {
  thread_local Arena arena;
  constexpr float kLog2E = 1.44269504088896f;
  const int64_t group = call.num_q_heads / call.num_kv_heads;
  const int num_rows = static_cast<int>(item_rows(call, item));
  const int64_t depth = call.head_dim / kPerWord<E>;
  const int64_t out_len = num_vectors(call.head_dim) * kLanes;
  Scratch<E> scratch(arena, num_rows, call.head_dim, out_len);
  const Context<E> context(call, item);
  const Context<E> next_context(call, next);
  pack_queries(call, item, scratch.q);
  std::fill_n(scratch.out, num_rows * out_len, 0.0f);
  std::fill_n(scratch.states, num_rows, RowState{});
  const auto* q = reinterpret_cast<const uint32_t*>(scratch.q);
  const auto* probs = reinterpret_cast<const uint32_t*>(scratch.probs);

  for (int64_t begin = item.begin; begin < item.end; begin += kTile) {
    const int64_t end = std::min(begin + kTile, item.end);
    const TileBlocks k = context.k_tile(begin, end, scratch.k_copy);
    const TileBlocks v = context.v_tile(begin, end, scratch.v_copy);
    const TileBlocks next_k = end < item.end ? context.k_ahead(end, item.end, v)
                                             : next_context.k_ahead(next.begin, next.end, v);
    score_tile<E>(q, num_rows, depth, k, v, scratch.scores);
    for (int r = 0; r < num_rows; ++r) {
      const int64_t limit = std::min(item.first_limit + r / group, end);
      softmax_row<E>(scratch.scores + r * kTile, static_cast<int>(limit - begin),
                     k.num_blocks * kBlock, call.scale * kLog2E, scratch.states[r],
                     scratch.probs + r * kTile, scratch.out + r * out_len, out_len);
    }
    accumulate_tile<E>(probs, num_rows, v, next_k, call.head_dim, scratch.out, out_len);
  }

  for (int r = 0; r < num_rows; ++r) {
    const float* from = scratch.out + r * out_len;
    const RowState state = scratch.states[r];
    if (item.first_partial < 0) {
      unpack_row(from, 1.0f / state.sum, call.head_dim, out_row<E>(call, item, r));
    } else {
      unpack_row(from, 1.0f, call.head_dim, partials.out + (item.first_partial + r) * call.head_dim);
      partials.states[item.first_partial + r] = state;
    }
  }
}

// Joins the parts of row r of a split query block: weights 2^(max_part - max), one division.
template <class E>
inline void merge_row(const AttentionCall& call, const Item& first, const Partials& partials,
                      int64_t r) {
  const int64_t stride = item_rows(call, first);
  const int64_t base = first.first_partial + r;
  float highest = -kInfinity;
  for (int64_t part = 0; part < first.num_parts; ++part)
    highest = std::max(highest, partials.states[base + part * stride].max);
  float* into = partials.out + base * call.head_dim;
  float sum = 0.0f;
  for (int64_t part = 0; part < first.num_parts; ++part) {
    const RowState state = partials.states[base + part * stride];
    const float weight = exp2_nonpositive<float>(broadcast(state.max - highest))[0];
    const float* from = partials.out + (base + part * stride) * call.head_dim;
    sum += weight * state.sum;
    for (int64_t d = 0; d < call.head_dim; ++d)
      into[d] = part == 0 ? weight * from[d] : into[d] + weight * from[d];
  }
  E* out = out_row<E>(call, first, r);
  for (int64_t v = 0; v < num_vectors(call.head_dim); ++v) {
    const int64_t dim = vector_dim(v, call.head_dim);
    store_narrow(out + dim, load<VecF>(into + dim) * (1.0f / sum));
  }
}

template <class E>
void paged_attention(const AttentionCall& call) {
  const WorkList work = cut_work(call);
  std::vector<float> partial_out(work.num_partials * call.head_dim);
  std::vector<RowState> partial_states(work.num_partials);
  const Partials partials{partial_out.data(), partial_states.data()};
  const int64_t num_items = static_cast<int64_t>(work.items.size());
  const int64_t num_merges = static_cast<int64_t>(work.merges.size());
  const int64_t turn = std::clamp<int64_t>(num_items / (call.num_threads * 16), 1, kMaxTurn);
#pragma omp parallel num_threads(static_cast<int>(call.num_threads))
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < num_items; first += turn) {
      const int64_t last = std::min(first + turn, num_items) - 1;
      for (int64_t i = first; i <= last; ++i)
        run_item<E>(call, work.items[i], work.items[std::min(i + 1, last)], partials);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_merges; ++i)
      for (int64_t r = 0; r < item_rows(call, work.merges[i]); ++r)
        merge_row<E>(call, work.merges[i], partials, r);
  }
}

// ---- filling and copying -------------------------------------------------------------------

// Mirrored by `_RowsCall` in attention.py. Rows of plain K and V against slots of one layer.
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

}  // namespace blendrun

// ---- what attention.py calls ---------------------------------------------------------------

extern "C" {

const char* blendrun_instruction_set() { return blendrun::instruction_set(); }

int blendrun_has_threads() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

void blendrun_paged_attention_bf16(const blendrun::AttentionCall* call) {
  blendrun::paged_attention<blendrun::Bf16>(*call);
}
void blendrun_paged_attention_f32(const blendrun::AttentionCall* call) {
  blendrun::paged_attention<float>(*call);
}
void blendrun_write_rows_bf16(const blendrun::RowsCall* call) {
  blendrun::write_rows<blendrun::Bf16>(*call);
}
void blendrun_write_rows_f32(const blendrun::RowsCall* call) {
  blendrun::write_rows<float>(*call);
}
void blendrun_read_rows_bf16(const blendrun::RowsCall* call) {
  blendrun::read_rows<blendrun::Bf16>(*call);
}
void blendrun_read_rows_f32(const blendrun::RowsCall* call) {
  blendrun::read_rows<float>(*call);
}

// Copies page src[i] onto page dst[i] in every layer of one cache [num_layers][num_pages] of
// pages of page_bytes. No page may be both source and destination.
void blendrun_copy_pages(char* cache, int64_t num_layers, int64_t num_pages, int64_t page_bytes,
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

// Asks for 2 MiB pages under [start, start + num_bytes): a cache walk in page-table order would
// otherwise miss the TLB at almost every KV page. Only a wish; touches no memory.
void blendrun_advise_huge_pages(char* start, int64_t num_bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(start) + kHuge - 1) / kHuge * kHuge;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(start) + num_bytes) / kHuge * kHuge;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)start;
  (void)num_bytes;
#endif
}

}  // extern "C"
