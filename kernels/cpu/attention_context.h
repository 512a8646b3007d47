// What one item reads and writes: the thread's scratch memory, and pages as blocks of 16 tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "attention_tile.h"
#include "attention_work.h"
#include "kv_cache.h"

namespace blendrun {

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

  // Appends where the blocks of K of tokens [begin, end) lie, and then those of V.
  void append_blocks(int64_t begin, int64_t end, std::vector<const uint32_t*>& to) const {
    const int64_t first = static_cast<int64_t>(to.size());
    const int64_t count = (end - begin + kBlock - 1) / kBlock;
    to.resize(first + 2 * count);
    int64_t page = begin / layout_.page_size, offset = begin % layout_.page_size;
    for (int64_t i = first; i < first + count; ++i) {
      // whole blocks of K and of V begin at the same element
      const int64_t at = layout_.head_start(pages_[page], kv_head_) + offset * layout_.head_dim;
      to[i] = words(k_cache_ + at);
      to[i + count] = words(v_cache_ + at);
      for (offset += kBlock; offset >= layout_.page_size; offset -= layout_.page_size) ++page;
    }
  }

  // Blocks of K can be read in the pages themselves where these hold whole blocks; elsewhere this
  // puts copies in their place. What lies behind `end` may be anything: it only spoils scores that
  // are masked.
  void make_k_whole(int64_t begin, int64_t end, const uint32_t** blocks, E* copies) const {
    if (pages_hold_blocks()) return;
    for (int64_t token = begin; token < end; token += kBlock)
      *blocks++ = words(copy_k(token, count_of(token, end), block_at(copies, token - begin)));
  }

  // The same of V, but here a last block that is not full is always a copy with zeros behind
  // `end`: in the page there may be NaN, which a probability of 0 would not silence.
  void make_v_whole(int64_t begin, int64_t end, const uint32_t** blocks, E* copies) const {
    const int64_t whole = pages_hold_blocks() ? (end - begin) / kBlock : 0;
    for (int64_t token = begin + whole * kBlock; token < end; token += kBlock)
      blocks[(token - begin) / kBlock] =
          words(copy_v(token, count_of(token, end), block_at(copies, token - begin)));
  }

 private:
  static constexpr uint32_t kFirstOfTwo = 0xffffu;

  static const uint32_t* words(const E* from) { return reinterpret_cast<const uint32_t*>(from); }

  bool pages_hold_blocks() const { return layout_.block_width == kBlock; }

  static int count_of(int64_t token, int64_t end) {
    return static_cast<int>(std::min<int64_t>(kBlock, end - token));
  }
  E* block_at(E* copies, int64_t token) const { return copies + token * layout_.head_dim; }

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
    if (pages_hold_blocks()) {
      const int64_t filled = (count + R - 1) / R * dims;  // words
      auto* block = reinterpret_cast<uint32_t*>(to);
      std::memcpy(block, v_at(token), filled * sizeof(uint32_t));
      std::memset(block + filled, 0, kBlock * dims * sizeof(E) - filled * sizeof(uint32_t));
      if (count % R != 0)  // the last words hold one token more
        for (int64_t word = filled - dims; word < filled; ++word) block[word] &= kFirstOfTwo;
      return to;
    }
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

// ---- what is read when ---------------------------------------------------------------------

// Pages lie anywhere, so the hardware cannot foresee them, and with few rows the time is all
// memory. This lists the blocks of K and V of some items in the order in which they are read, so
// that each line that is read can ask for the one that lies kLead blocks behind it, also across
// the ends of tiles and items.
class BlockList {
 public:
  // Starts over with the items [first, last], and asks for the first blocks at once.
  template <class E>
  void begin(const AttentionCall& call, const Item* first, const Item* last) {
    const int64_t block_words = kBlock * call.head_dim / kPerWord<E>;
    blocks_.clear();
    for (const Item* item = first; item <= last; ++item) {
      const Context<E> context(call, *item);
      for (int64_t at = item->begin; at < item->end; at += kTile)
        context.append_blocks(at, std::min(at + kTile, item->end), blocks_);
    }
    at_ = 0;
    if (blocks_.empty()) return;
    for (int b = 0; b < kLead; ++b) blocks_.push_back(blocks_.back());
    for (int b = 0; b < kLead; ++b)
      for (int64_t word = 0; word < block_words; word += kLineWords) prefetch(blocks_[b] + word);
  }

  // The next num_blocks blocks, which are now read.
  TileBlocks next(int num_blocks) {
    const uint32_t** at = blocks_.data() + at_;
    at_ += num_blocks;
    return {at, at + kLead, num_blocks};
  }

  // The same blocks, to put copies in their place.
  const uint32_t** upcoming() { return blocks_.data() + at_; }

 private:
  static constexpr int kLead = 8;  // 16 KB of heads of 64 bfloat16 elements
  std::vector<const uint32_t*> blocks_;
  size_t at_ = 0;
};

}  // namespace blendrun
