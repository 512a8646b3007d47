// What attention is asked to compute, and how it is cut into items for the threads.
//
// An item is (query block of one sequence, KV head, range of the context). Only a sequence with a
// single query block has its context split over items; the parts are merged afterwards. How a
// sequence is cut depends on that sequence alone, so its results depend neither on its neighbours
// nor on the threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention_tile.h"

namespace blendrun {

// Mirrored field by field by `AttentionCall` in attention_binding.py.
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
  int64_t may_split;           // 0: no context is cut, so that a row is the same in any chunk
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
    const bool splits = call.may_split && count <= block_queries;
    const int64_t num_parts =
        splits ? std::max<int64_t>(1, (context + kSplitTokens / 2) / kSplitTokens) : 1;
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

}  // namespace blendrun
