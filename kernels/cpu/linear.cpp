// Products of activations with a weight that is packed once, in bfloat16 with float32 sums, for
// CPUs with bfloat16 dot products. linear.py is the wrapper, linear_reference.py says the same in
// plain torch.
//
// A panel is W output columns of the weight, 4 vectors: words of 2 neighbouring inputs, [K / 2][W].
// A group of rows of x times one panel fills the vector registers; a block of groups goes through a
// panel while that is in the L2 cache, and the next one is brought there. No sum is divided among
// threads, so a row's result depends on nothing but the row.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "micro.h"
#include "rows.h"
#include "silu.h"
#include "simd.h"

namespace blendrun {

// Mirrored field by field by `LinearCall` in linear.py.
struct LinearCall {
  const void* x;         // [T, K] bfloat16, last dim contiguous
  const void* panels;    // [P][K / 2][W] words
  const void* bias;      // [P W] bfloat16, in the order of the panels' columns, or null
  void* out;             // [T, N] bfloat16, contiguous; with is_added the result is added to it
  int64_t num_rows;      // T
  int64_t x_row_stride;  // elements, even
  int64_t num_words;     // K / 2
  int64_t num_panels;    // P
  int64_t out_width;     // N; with is_gated half as many as there are columns
  int64_t is_gated;      // panels are W / 2 gates and the W / 2 columns that they are for
  int64_t is_added;
  int64_t num_threads;
};

constexpr int kPanelVecs = kMicroVecs;
constexpr int kPanelWidth = kPanelVecs * kLanes;
constexpr int64_t kGroupsAtOnce = 16;   // of kMicroRows rows of x: at 1,536 inputs 295 KB
constexpr int64_t kWordsAtOnce = 768;   // of a column: a panel's piece is 196 KB

// acc[r] += x[r] . panel over `num_words` words; asks for as many lines from `ahead` on.
template <int Rows>
inline void multiply(const uint32_t* x, int64_t x_stride, const uint32_t* panel, int64_t num_words,
                     const uint32_t* ahead, VecF (&acc)[Rows][kPanelVecs]) {
  for (int64_t w = 0; w < num_words; ++w) {
    if (ahead != nullptr) prefetch(ahead + w * kLineWords);
    VecU column[kPanelVecs];
#pragma GCC unroll 8
    for (int j = 0; j < kPanelVecs; ++j)
      column[j] = load<VecU>(panel + w * kPanelWidth + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const VecU value = broadcast(load<uint32_t>(x + r * x_stride + w));
#pragma GCC unroll 8
      for (int j = 0; j < kPanelVecs; ++j) acc[r][j] = dot<Bf16>(acc[r][j], column[j], value);
    }
  }
}

// One row of a finished panel.
inline void finish_row(const LinearCall& call, int64_t row, int64_t panel, const VecF* sums) {
  VecF value[kPanelVecs];
  const auto* bias = static_cast<const Bf16*>(call.bias);
  for (int j = 0; j < kPanelVecs; ++j) {
    value[j] = sums[j];
    if (bias != nullptr) value[j] += widen(bias + panel * kPanelWidth + j * kLanes);
  }
  int num_vecs = kPanelVecs;
  if (call.is_gated) {
    num_vecs /= 2;
    for (int j = 0; j < num_vecs; ++j) value[j] = silu<Bf16>(value[j]) * value[j + num_vecs];
  }
  Bf16* out = static_cast<Bf16*>(call.out) + row * call.out_width + panel * num_vecs * kLanes;
  for (int j = 0; j < num_vecs; ++j) {
    if (call.is_added) value[j] += widen(out + j * kLanes);
    store_narrow(out + j * kLanes, value[j]);
  }
}

// Rows [first_row, last_row) of x times one panel; `partial` holds sums of one piece for the next.
inline void run_panel(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t panel,
                      float* partial) {
  const auto* x = static_cast<const uint32_t*>(call.x);
  const int64_t x_stride = call.x_row_stride / 2;
  const auto* words = static_cast<const uint32_t*>(call.panels) +
                      panel * call.num_words * kPanelWidth;
  for (int64_t begin = 0; begin < call.num_words; begin += kWordsAtOnce) {
    const int64_t num_words = std::min(kWordsAtOnce, call.num_words - begin);
    const bool is_last = begin + num_words == call.num_words;
    const uint32_t* piece = words + begin * kPanelWidth;
    const int64_t piece_words = num_words * kPanelWidth;
    for_row_groups(static_cast<int>(last_row - first_row), [&](int first, int count) {
      with_constant<kMicroRows>(count, [&](auto rows) {
        constexpr int kRows = rows.value;
        VecF acc[kRows][kPanelVecs] = {};
        float* sums = partial + first * kPanelWidth;
        if (begin > 0) std::memcpy(acc, sums, sizeof(acc));
        // what is read next lies behind this piece; the first groups ask for all of it
        const int64_t asked = first / kMicroRows * num_words * kLineWords;
        multiply<kRows>(x + (first_row + first) * x_stride + begin, x_stride, piece, num_words,
                        asked < piece_words ? piece + piece_words + asked : nullptr, acc);
        if (!is_last) {
          std::memcpy(sums, acc, sizeof(acc));
        } else {
          for (int r = 0; r < kRows; ++r) finish_row(call, first_row + first + r, panel, acc[r]);
        }
      });
    });
  }
}

// Threads share the pairs of a panel and a group of rows evenly: block by block, in a block panel
// by panel.
void linear(const LinearCall& call) {
  const int64_t num_groups = (call.num_rows + kMicroRows - 1) / kMicroRows;
  const int64_t num_blocks = std::max<int64_t>(1, (num_groups + kGroupsAtOnce - 1) / kGroupsAtOnce);
  const int64_t block_groups = (num_groups + num_blocks - 1) / num_blocks;
  const int64_t num_pairs = num_groups * call.num_panels;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(call.num_threads))
  for (int64_t thread = 0; thread < call.num_threads; ++thread) {
    alignas(64) float partial[kGroupsAtOnce * kMicroRows * kPanelWidth];
    int64_t pair = num_pairs * thread / call.num_threads;
    const int64_t last = num_pairs * (thread + 1) / call.num_threads;
    while (pair < last) {
      const int64_t before = pair / (block_groups * call.num_panels) * block_groups;  // groups
      const int64_t groups = std::min(block_groups, num_groups - before);
      const int64_t place = pair - before * call.num_panels;
      const int64_t first = place % groups, end = std::min(groups, first + last - pair);
      run_panel(call, (before + first) * kMicroRows,
                std::min((before + end) * kMicroRows, call.num_rows), place / groups, partial);
      pair += end - first;
    }
  }
}

}  // namespace blendrun

extern "C" {
int blendrun_panel_width() { return blendrun::kPanelWidth; }
int blendrun_has_bf16_dot() { return BLENDRUN_HAS_BF16_DOT; }
void blendrun_linear_bf16(const blendrun::LinearCall* call) { blendrun::linear(*call); }
}  // extern "C"
