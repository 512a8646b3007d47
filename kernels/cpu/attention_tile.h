// The inner loops of attention: scores, online softmax and P*V of some rows over a tile of tokens.
//
// A "row" is one query head of one query token. All rows here share a KV head, so each vector of K
// and V that is loaded serves several rows. Nothing here knows of pages: K and V come as pointers
// to blocks of 16 tokens in the layout of kv_cache.h (B = 16, R tokens per word of V).
// With each line that is read goes a wish for the same line of a block that is read later: `ahead`.
#pragma once

#include <cstdint>

#include "kv_cache.h"
#include "micro.h"
#include "simd.h"

namespace blendrun {

constexpr int kTile = 1024;                                  // tokens per softmax step
constexpr int kTileBlocks = kTile / kBlock;
constexpr int kVecsPerBlock = kBlock / kLanes;
constexpr int kMicroBlocks = kVecsPerBlock >= kMicroVecs ? 1 : kMicroVecs / kVecsPerBlock;

// The blocks of K or of V of one tile, and what to ask for while each of them is read. All blocks
// have the same size.
struct TileBlocks {
  const uint32_t* const* at;
  const uint32_t* const* ahead;
  int num_blocks;
};

// ---- scores --------------------------------------------------------------------------------

// scores[r][16 * b + i] = q[r] . k_blocks[b][token i]
//   q         [Rows][depth] words
//   k_blocks  Blocks pointers to [depth][16] words
//   ahead     Blocks pointers to blocks of the same size that are wanted next, or null
//   scores    [Rows][kTile] float
template <class E, int Rows, int Blocks>
inline void score_blocks(const uint32_t* q, int64_t depth, const uint32_t* const* k_blocks,
                         const uint32_t* const* ahead, float* scores) {
  constexpr int kVecs = Blocks * kVecsPerBlock;
  VecF acc[Rows][kVecs] = {};
  for (int64_t w = 0; w < depth; ++w) {
    if (ahead != nullptr) {
#pragma GCC unroll 8
      for (int b = 0; b < Blocks; ++b) prefetch(ahead[b] + w * kBlock);
    }
    VecU k[kVecs];
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j)
      k[j] = load<VecU>(k_blocks[j / kVecsPerBlock] + w * kBlock + (j % kVecsPerBlock) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const VecU query = broadcast(load<uint32_t>(q + r * depth + w));
#pragma GCC unroll 8
      for (int j = 0; j < kVecs; ++j) acc[r][j] = dot<E>(acc[r][j], k[j], query);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) store(scores + r * kTile + j * kLanes, acc[r][j]);
}

// Scores of all rows against all blocks of a tile; scores is [num_rows][kTile].
template <class E>
inline void score_tile(const uint32_t* q, int num_rows, int64_t depth, const TileBlocks& k,
                       float* scores) {
  const int num_blocks = k.num_blocks;
  const auto run = [&](auto blocks, int first_block) {
    for_row_groups(num_rows, [&](int first, int count) {
      with_constant<kMicroRows>(count, [&](auto rows) {
        score_blocks<E, rows.value, blocks.value>(
            q + first * depth, depth, k.at + first_block,
            first == 0 ? k.ahead + first_block : nullptr,
            scores + first * kTile + first_block * kBlock);
      });
    });
  };
  int b = 0;
  for (; b + kMicroBlocks <= num_blocks; b += kMicroBlocks)
    run(std::integral_constant<int, kMicroBlocks>{}, b);
  for (; b < num_blocks; ++b) run(std::integral_constant<int, 1>{}, b);
}

// ---- online softmax ------------------------------------------------------------------------

// Running state of a row, with scores in units of log2.
struct RowState {
  float max = -kInfinity;
  float sum = 0.0f;  // of 2^(score - max)
};

// Turns a row's scores of one tile into probabilities relative to the row's running maximum.
//   scores  [width] float, raw dot products; entries from `valid` on are ignored
//   valid   tokens that this row may see; the others get probability 0
//   width   a multiple of 16
//   scale   softmax scale * log2(e), > 0
//   probs   [width] E
//   out     [out_len] float, the row's P*V so far; scaled down where the maximum rises
template <class E>
inline void softmax_row(float* scores, int valid, int width, float scale, RowState& state, E* probs,
                        float* out, int64_t out_len) {
  if (valid <= 0) {
    std::memset(probs, 0, width * sizeof(E));
    return;
  }
  for (int i = valid; i < width; ++i) scores[i] = -kInfinity;
  VecF highest = broadcast(-kInfinity);
  for (int i = 0; i < width; i += kLanes) highest = maximum(load<VecF>(scores + i), highest);
  const float tile_max = reduce_max(highest) * scale;
  if (tile_max > state.max) {
    if (state.sum > 0.0f) {
      const float shrink = exp2_bounded<float>(broadcast(state.max - tile_max))[0];
      state.sum *= shrink;
      for (int64_t d = 0; d < out_len; ++d) out[d] *= shrink;
    }
    state.max = tile_max;
  }
  VecF total{};
  for (int i = 0; i < width; i += kLanes) {
    const VecF p = exp2_bounded<E>(load<VecF>(scores + i) * scale - state.max);
    total += p;
    store_narrow(probs + i, p);
  }
  state.sum += reduce_sum(total);
}

// ---- P*V -----------------------------------------------------------------------------------

// First dim of vector v of an output row. The last vector may overlap the one before it, so that
// any head_dim >= kLanes works without padding; both then compute the same values.
inline int64_t vector_dim(int64_t v, int64_t head_dim) {
  const int64_t dim = v * kLanes;
  return dim + kLanes <= head_dim ? dim : head_dim - kLanes;
}
inline int64_t num_vectors(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes; }

// out[r][v] += sum over tokens of probs[r][token] * V[token][dims of vector v], for Vecs vectors.
//   probs     [Rows][kTile / R] words
//   v_blocks  num_blocks pointers to [16 / R][head_dim] words
//   ahead     num_blocks pointers to blocks of the same size that are wanted next, or null
//   dims      [Vecs] first dim of each vector
//   out       [Rows][out_len] float, at the first of the vectors
template <class E, int Rows, int Vecs>
inline void accumulate_blocks(const uint32_t* probs, const uint32_t* const* v_blocks,
                              const uint32_t* const* ahead, int num_blocks, int64_t head_dim,
                              const int64_t* dims, float* out, int64_t out_len) {
  constexpr int kWordsPerBlock = kBlock / kPerWord<E>;
  VecF acc[Rows][Vecs];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) acc[r][j] = load<VecF>(out + r * out_len + j * kLanes);
  for (int b = 0; b < num_blocks; ++b) {
    const uint32_t* v_row = v_blocks[b];
    const uint32_t* p = probs + b * kWordsPerBlock;
    for (int t = 0; t < kWordsPerBlock; ++t, v_row += head_dim, ++p) {
      if (ahead != nullptr) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) prefetch(ahead[b] + t * head_dim + dims[j]);
      }
      VecU v[Vecs];
#pragma GCC unroll 8
      for (int j = 0; j < Vecs; ++j) v[j] = load<VecU>(v_row + dims[j]);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const VecU weight = broadcast(load<uint32_t>(p + r * (kTile / kPerWord<E>)));
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) acc[r][j] = dot<E>(acc[r][j], v[j], weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) store(out + r * out_len + j * kLanes, acc[r][j]);
}

// P*V of all rows over a tile; out is [num_rows][out_len] with out_len = num_vectors * kLanes.
template <class E>
inline void accumulate_tile(const uint32_t* probs, int num_rows, const TileBlocks& v,
                            int64_t head_dim, float* out, int64_t out_len) {
  const int64_t total = num_vectors(head_dim);
  for_row_groups(num_rows, [&](int first, int count) {
    const uint32_t* p = probs + first * (kTile / kPerWord<E>);
    for (int64_t at = 0; at < total; at += kMicroVecs) {
      const int num_vecs = static_cast<int>(total - at < kMicroVecs ? total - at : kMicroVecs);
      int64_t dims[kMicroVecs] = {};
      for (int j = 0; j < num_vecs; ++j) dims[j] = vector_dim(at + j, head_dim);
      with_constant<kMicroRows>(count, [&](auto rows) {
        with_constant<kMicroVecs>(num_vecs, [&](auto vecs) {
          accumulate_blocks<E, rows.value, vecs.value>(
              p, v.at, first == 0 ? v.ahead : nullptr, v.num_blocks, head_dim, dims,
              out + first * out_len + at * kLanes, out_len);
        });
      });
    }
  });
}

}  // namespace blendrun
