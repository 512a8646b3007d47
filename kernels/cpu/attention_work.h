// What attention is asked to compute, and how it is cut into items for the threads.
//
// A span is a run of query tokens that read the same range of a context: one for each sequence,
// and one for each shared prefix, whose query tokens are those of all its sharers. An item is
// (block of a span's query tokens, KV head, part of its range). Parts are merged afterwards, a
// sequence's own with those of the prefixes above it. How a sequence is cut depends on itself and
// on the prefixes that it is said to share, so without such prefixes its results depend neither
// on its neighbours nor on the threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention_tile.h"

namespace blendrun {

// Mirrored field by field by `AttentionCall` in attention_binding.py.
struct AttentionCall {
  const void* q;               // [T, Hq, D] E, last dim contiguous; from here …
  void* out;                   // [T, Hq, D] E, contiguous
  const void* k_cache;         // one layer, layout in kv_cache.h
  const void* v_cache;         // one layer
  int64_t q_row_stride;        // elements from one token of q to the next
  int64_t q_head_stride;       // elements to the next head; to here each layer's own
  const int32_t* q_indptr;     // [S + 1] first query row of each sequence
  const int32_t* context_len;  // [S] tokens, the query rows included
  const int32_t* page_table;   // [S, max_pages] page of each page_size tokens of the context
  // Shared prefixes: ranges of context that are the same pages for several sequences.
  const int32_t* order;        // [S] sequences, sharers side by side
  const int32_t* group;        // [S] innermost prefix of each sequence, or -1
  const int32_t* first;        // [G] sharers are order[first .. last)
  const int32_t* last;         // [G]
  const int32_t* begin;        // [G] tokens of the context, multiples of page_size
  const int32_t* end;          // [G]
  const int32_t* parent;       // [G] an earlier prefix, which ends where this begins, or -1
  int64_t num_groups;          // G; if 0 none of these is read
  int64_t num_seqs;            // S
  int64_t max_pages;           // row length of page_table
  int64_t num_q_heads;         // Hq, a multiple of num_kv_heads
  int64_t num_kv_heads;        // Hkv
  int64_t head_dim;            // D, a multiple of 8, >= 16
  int64_t page_size;           // tokens
  int64_t num_threads;
  int64_t is_bf16;             // else float32
  int64_t may_split;           // 0: no context is cut, so that a row is the same in any chunk
  float scale;                 // multiplies q . k before the (natural) exponential, > 0
};

constexpr int64_t kBlockRows = 24;       // rows (queries x group) of a query block, about
constexpr int64_t kSplitTokens = 1024;   // context of one item of a split sequence, about
constexpr int64_t kMaxTurn = 8;          // items that a thread takes at a time, at most

struct Span {
  int64_t seq;            // whose pages are read
  int64_t first_query;    // position in WorkList::query_rows
  int64_t num_queries;
  int64_t first_limit;    // tokens that the first query may see, …
  int64_t limit_step;     // … and how many more each further one
  int64_t begin, end;     // range of the context; may be empty
  int64_t parent;         // span of the prefix before `begin`, or -1
  int64_t num_parts;      // parts of the range, each for all of the queries
  int64_t first_partial;  // where their results go, or -1: they are final
};

struct Item {
  int64_t seq;
  int64_t kv_head;
  int64_t first_query;    // position in WorkList::query_rows
  int64_t num_queries;
  int64_t first_limit;
  int64_t limit_step;
  int64_t begin, end;
  int64_t first_partial;  // row of Partials, or -1: the result is final
};

// The results of one span and KV head are to be merged with those of the prefixes above.
struct Merge {
  int64_t span;
  int64_t kv_head;
};

// ---- cutting the work ----------------------------------------------------------------------

struct WorkList {
  std::vector<int32_t> query_rows;  // rows of q, sharers side by side; empty: 0, 1, …
  std::vector<Span> spans;          // of the prefixes, then of the sequences
  std::vector<Item> items;          // most costly first
  std::vector<Merge> merges;
  int64_t num_partials = 0;         // rows of partial results
};

inline int64_t query_row(const WorkList& work, int64_t position) {
  return work.query_rows.empty() ? position : work.query_rows[position];
}

inline int64_t group_size(const AttentionCall& call) {
  return call.num_q_heads / call.num_kv_heads;
}

inline int64_t item_rows(const AttentionCall& call, const Item& item) {
  return item.num_queries * group_size(call);
}

// Row of Partials with the first query head of query `i` of a span, and part and KV head.
inline int64_t partial_row(const AttentionCall& call, const Span& span, int64_t part,
                           int64_t kv_head, int64_t i) {
  const int64_t query = (part * call.num_kv_heads + kv_head) * span.num_queries + i;
  return span.first_partial + query * group_size(call);
}

// Adds a span and its items. Neighbours among them read the same K and V.
inline void add_span(const AttentionCall& call, Span span, int64_t block_queries, bool is_final,
                     WorkList& work) {
  const int64_t tiles = (span.end - span.begin + kTile - 1) / kTile;
  span.first_partial = is_final ? -1 : work.num_partials;
  if (!is_final)
    work.num_partials += span.num_parts * call.num_kv_heads * span.num_queries * group_size(call);
  for (int64_t head = 0; head < call.num_kv_heads; ++head)
    for (int64_t part = 0; part < span.num_parts; ++part)
      for (int64_t at = 0; at < span.num_queries; at += block_queries) {
        const int64_t queries = std::min(block_queries, span.num_queries - at);
        const int64_t limit = span.first_limit + at * span.limit_step;
        const int64_t seen = std::min(span.end, limit + (queries - 1) * span.limit_step);
        const int64_t begin = span.begin + tiles * part / span.num_parts * kTile;
        const int64_t end = span.begin + tiles * (part + 1) / span.num_parts * kTile;
        work.items.push_back({span.seq, head, span.first_query + at, queries, limit,
                              span.limit_step, begin, std::min(seen, end),
                              is_final ? -1 : partial_row(call, span, part, head, at)});
      }
  work.spans.push_back(span);
}

inline int64_t num_parts(int64_t num_tokens) {
  return num_tokens == 0 ? 0 : std::max<int64_t>(1, (num_tokens + kSplitTokens / 2) / kSplitTokens);
}

// One span for each shared prefix. Returns each sequence's first position in query_rows.
inline std::vector<int64_t> add_prefixes(const AttentionCall& call, int64_t block_queries,
                                         WorkList& work) {
  std::vector<int64_t> position(call.num_seqs);
  std::vector<int64_t> starts(call.num_seqs + 1);  // of order[i]
  work.query_rows.reserve(call.q_indptr[call.num_seqs]);
  for (int64_t i = 0; i < call.num_seqs; ++i) {
    const int64_t seq = call.order[i];
    position[seq] = starts[i] = static_cast<int64_t>(work.query_rows.size());
    for (int32_t row = call.q_indptr[seq]; row < call.q_indptr[seq + 1]; ++row)
      work.query_rows.push_back(row);
  }
  starts[call.num_seqs] = static_cast<int64_t>(work.query_rows.size());
  for (int64_t g = 0; g < call.num_groups; ++g) {
    const int64_t first = starts[call.first[g]], begin = call.begin[g], end = call.end[g];
    add_span(call,
             {call.order[call.first[g]], first, starts[call.last[g]] - first, end, 0, begin, end,
              call.parent[g], num_parts(end - begin), -1},
             block_queries, false, work);
  }
  return position;
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
  const int64_t block_queries = std::max<int64_t>(1, kBlockRows / group_size(call));
  std::vector<int64_t> position;
  if (call.num_groups > 0) position = add_prefixes(call, block_queries, work);
  for (int64_t seq = 0; seq < call.num_seqs; ++seq) {
    const int64_t first = call.q_indptr[seq];
    const int64_t count = call.q_indptr[seq + 1] - first;
    if (count == 0) continue;
    const int64_t context = call.context_len[seq];
    const int64_t parent = call.num_groups > 0 ? call.group[seq] : -1;
    const int64_t begin = parent < 0 ? 0 : call.end[parent];
    // Only a single query block has its context split.
    const bool splits = call.may_split && count <= block_queries;
    const int64_t parts = num_parts(context - begin);
    const Span span{seq,     position.empty() ? first : position[seq],
                    count,   context - count + 1,
                    1,       begin,
                    context, parent,
                    splits ? parts : std::min<int64_t>(parts, 1), -1};
    const bool is_final = parent < 0 && span.num_parts == 1;
    add_span(call, span, block_queries, is_final, work);
    if (!is_final)
      for (int64_t head = 0; head < call.num_kv_heads; ++head)
        work.merges.push_back({static_cast<int64_t>(work.spans.size()) - 1, head});
  }
  sort_by_cost(call, work.items);
  return work;
}

}  // namespace blendrun
