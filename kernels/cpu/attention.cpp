// Paged attention on the CPU: decode rows and chunked prefill in one call, grouped heads, bfloat16
// or float32, float32 accumulation. attention.py is the wrapper, attention_reference.py says the
// same in plain torch.
//
// The work is cut into items (attention_work.h). An item walks its context tile by tile with an
// online softmax (attention_tile.h) over pages (attention_context.h, kv_cache.h).

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention_context.h"
#include "attention_tile.h"
#include "attention_work.h"
#include "kv_rows.h"
#include "simd.h"

namespace blendrun {

// ---- one item ------------------------------------------------------------------------------

// Rows of the results of split items, before they are merged.
struct Partials {
  float* out;        // [num_partials][D], P*V relative to the row's own maximum
  RowState* states;  // [num_partials]
};

template <class E>
inline void pack_queries(const AttentionCall& call, const WorkList& work, const Item& item, E* to) {
  const int64_t group = group_size(call);
  const E* q = static_cast<const E*>(call.q);
  for (int64_t i = 0; i < item.num_queries; ++i)
    for (int64_t g = 0; g < group; ++g, to += call.head_dim)
      std::memcpy(to,
                  q + query_row(work, item.first_query + i) * call.q_row_stride +
                      (item.kv_head * group + g) * call.q_head_stride,
                  call.head_dim * sizeof(E));
}

// out[0 .. D) = from * factor, where `from` has the overlapping last vector of vector_dim().
template <class T>
inline void unpack_row(const float* from, float factor, int64_t head_dim, T* out) {
  for (int64_t v = 0; v < num_vectors(head_dim); ++v)
    store_narrow(out + vector_dim(v, head_dim), load<VecF>(from + v * kLanes) * factor);
}

// Where the result of a query head of the query at `position` belongs in `out`.
template <class E>
inline E* out_row(const AttentionCall& call, const WorkList& work, int64_t position, int64_t head) {
  const int64_t row = query_row(work, position) * call.num_q_heads + head;
  return static_cast<E*>(call.out) + row * call.head_dim;
}

// Computes one item; `blocks` stands at its first one.
template <class E>
inline void run_item(const AttentionCall& call, const WorkList& work, const Item& item,
                     BlockList& blocks, const Partials& partials) {
  thread_local Arena arena;
  constexpr float kLog2E = 1.44269504088896f;
  const int64_t group = group_size(call);
  const int num_rows = static_cast<int>(item_rows(call, item));
  const int64_t depth = call.head_dim / kPerWord<E>;
  const int64_t out_len = num_vectors(call.head_dim) * kLanes;
  Scratch<E> scratch(arena, num_rows, call.head_dim, out_len);
  const Context<E> context(call, item);
  pack_queries(call, work, item, scratch.q);
  std::fill_n(scratch.out, num_rows * out_len, 0.0f);
  std::fill_n(scratch.states, num_rows, RowState{});
  const auto* q = reinterpret_cast<const uint32_t*>(scratch.q);
  const auto* probs = reinterpret_cast<const uint32_t*>(scratch.probs);

  for (int64_t begin = item.begin; begin < item.end; begin += kTile) {
    const int64_t end = std::min(begin + kTile, item.end);
    const int num_blocks = static_cast<int>((end - begin + kBlock - 1) / kBlock);
    context.make_k_whole(begin, end, blocks.upcoming(), scratch.k_copy);
    score_tile<E>(q, num_rows, depth, blocks.next(num_blocks), scratch.scores);
    for (int r = 0; r < num_rows; ++r) {
      const int64_t limit = std::min(item.first_limit + r / group * item.limit_step, end);
      softmax_row<E>(scratch.scores + r * kTile, static_cast<int>(limit - begin),
                     num_blocks * kBlock, call.scale * kLog2E, scratch.states[r],
                     scratch.probs + r * kTile, scratch.out + r * out_len, out_len);
    }
    context.make_v_whole(begin, end, blocks.upcoming(), scratch.v_copy);
    accumulate_tile<E>(probs, num_rows, blocks.next(num_blocks), call.head_dim, scratch.out,
                       out_len);
  }

  for (int r = 0; r < num_rows; ++r) {
    const float* from = scratch.out + r * out_len;
    const RowState state = scratch.states[r];
    if (item.first_partial < 0) {
      const int64_t head = item.kv_head * group + r % group;
      unpack_row(from, 1.0f / state.sum, call.head_dim,
                 out_row<E>(call, work, item.first_query + r / group, head));
    } else {
      const int64_t row = item.first_partial + r;
      unpack_row(from, 1.0f, call.head_dim, partials.out + row * call.head_dim);
      partials.states[row] = state;
    }
  }
}

// One of the results that make up an output row.
struct Part {
  const float* out;
  float weight;
};

// Joins the parts of a query head: its own and those of the prefixes above it, weights
// 2^(max_part - max), one division. `query` counts within the span.
template <class E>
inline void merge_row(const AttentionCall& call, const WorkList& work, const Merge& merge,
                      int64_t query, int64_t g, const Partials& partials,
                      std::vector<Part>& parts) {
  const Span& own = work.spans[merge.span];
  const int64_t position = own.first_query + query;
  const auto for_parts = [&](auto&& f) {
    for (int64_t s = merge.span; s >= 0; s = work.spans[s].parent) {
      const Span& span = work.spans[s];
      for (int64_t part = 0; part < span.num_parts; ++part)
        f(partial_row(call, span, part, merge.kv_head, position - span.first_query) + g);
    }
  };
  float highest = -kInfinity, sum = 0.0f;
  for_parts([&](int64_t row) { highest = std::max(highest, partials.states[row].max); });
  parts.clear();
  for_parts([&](int64_t row) {
    const RowState state = partials.states[row];
    const float weight = exp2_bounded<float>(broadcast(state.max - highest))[0];
    sum += weight * state.sum;
    parts.push_back({partials.out + row * call.head_dim, weight});
  });
  E* out = out_row<E>(call, work, position, merge.kv_head * group_size(call) + g);
  for (int64_t v = 0; v < num_vectors(call.head_dim); ++v) {
    const int64_t dim = vector_dim(v, call.head_dim);
    VecF total{};
    for (const Part& part : parts) total += load<VecF>(part.out + dim) * part.weight;
    store_narrow(out + dim, total * (1.0f / sum));
  }
}

// The work of one step, the same for every layer.
struct AttentionPlan {
  AttentionCall call;
  WorkList work;
};

// One layer of a plan. Mirrored field by field by `LayerAttention` in attention_binding.py.
struct LayerAttention {
  AttentionPlan* plan;
  const void* q;         // [T, Hq, D], last dim contiguous
  void* out;             // [T, Hq, D], contiguous
  const void* k_cache;
  const void* v_cache;
  int64_t q_row_stride;  // elements
  int64_t q_head_stride;
};

template <class E>
void run_attention(const AttentionPlan& plan) {
  thread_local Arena arena;
  const AttentionCall& call = plan.call;
  const WorkList& work = plan.work;
  arena.reset(Arena::padded<float>(work.num_partials * call.head_dim) +
              Arena::padded<RowState>(work.num_partials));
  const Partials partials{arena.take<float>(work.num_partials * call.head_dim),
                          arena.take<RowState>(work.num_partials)};
  const int64_t num_items = static_cast<int64_t>(work.items.size());
  const int64_t num_merges = static_cast<int64_t>(work.merges.size());
  const int64_t turn = std::clamp<int64_t>(num_items / (call.num_threads * 16), 1, kMaxTurn);
#pragma omp parallel num_threads(static_cast<int>(call.num_threads))
  {
    thread_local BlockList blocks;
    std::vector<Part> parts;
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < num_items; first += turn) {
      const Item* items = work.items.data();
      const int64_t last = std::min(first + turn, num_items) - 1;
      blocks.begin<E>(call, items + first, items + last);
      for (int64_t i = first; i <= last; ++i) run_item<E>(call, work, items[i], blocks, partials);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_merges; ++i)
      for (int64_t query = 0; query < work.spans[work.merges[i].span].num_queries; ++query)
        for (int64_t g = 0; g < group_size(call); ++g)
          merge_row<E>(call, work, work.merges[i], query, g, partials, parts);
  }
}

}  // namespace blendrun

// ---- what attention_binding.py finds --------------------------------------------------------

extern "C" {

const char* blendrun_instruction_set() { return blendrun::instruction_set(); }

int blendrun_has_threads() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

// Keeps the pointers of the call, and cuts its work; it needs no q, out or caches yet.
blendrun::AttentionPlan* blendrun_plan_attention(const blendrun::AttentionCall* call) {
  return new blendrun::AttentionPlan{*call, blendrun::cut_work(*call)};
}
void blendrun_free_attention_plan(blendrun::AttentionPlan* plan) { delete plan; }

void blendrun_run_attention(const blendrun::LayerAttention* layer) {
  blendrun::AttentionCall& call = layer->plan->call;
  call.q = layer->q;
  call.out = layer->out;
  call.k_cache = layer->k_cache;
  call.v_cache = layer->v_cache;
  call.q_row_stride = layer->q_row_stride;
  call.q_head_stride = layer->q_head_stride;
  if (call.is_bf16)
    blendrun::run_attention<blendrun::Bf16>(*layer->plan);
  else
    blendrun::run_attention<float>(*layer->plan);
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

void blendrun_copy_pages(char* cache, int64_t num_layers, int64_t num_pages, int64_t page_bytes,
                         const int32_t* src, const int32_t* dst, int64_t num_copies,
                         int64_t num_threads) {
  blendrun::copy_pages(cache, num_layers, num_pages, page_bytes, src, dst, num_copies,
                       num_threads);
}

}  // extern "C"
