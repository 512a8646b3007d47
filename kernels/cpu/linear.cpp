// Products of activations with a weight that is packed once, in bfloat16 with float32 sums, for
// CPUs with bfloat16 dot products. linear.py is the wrapper, linear_reference.py says the same in
// plain torch.
//
// A panel is W output columns of the weight, 4 vectors: words of 2 neighbouring inputs, [K / 2][W].
// A group of rows of x times one panel fills the vector registers; a block of groups goes through a
// panel while that is in the L2 cache, and the next one is brought there. No sum is divided among
// threads, so a row's result depends on nothing but the row. An RMSNorm before the product is a
// factor of each row of results: the norm's weight is in the panels.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linear_finish.h"
#include "micro.h"
#include "rows.h"
#include "simd.h"

namespace blendrun {

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

// Rows [first_row, last_row) of x times one panel; `partial` holds sums of one piece for the next.
template <class Finish>
inline void run_panel(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t panel,
                      float* partial, Finish& finish) {
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
        VecF acc[kRows][kPanelVecs];
        float* sums = partial + first * kPanelWidth;
        // vector by vector: as one copy, they would go through memory
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int j = 0; j < kPanelVecs; ++j)
            acc[r][j] = begin > 0 ? load<VecF>(sums + r * kPanelWidth + j * kLanes) : VecF{};
        // what is read next lies behind this piece; the first groups ask for all of it
        const int64_t asked = first / kMicroRows * num_words * kLineWords;
        multiply<kRows>(x + (first_row + first) * x_stride + begin, x_stride, piece, num_words,
                        asked < piece_words ? piece + piece_words + asked : nullptr, acc);
        if (!is_last) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
            for (int j = 0; j < kPanelVecs; ++j)
              store(sums + r * kPanelWidth + j * kLanes, acc[r][j]);
        } else {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) finish.finish(first_row + first + r, panel, acc[r]);
        }
      });
    });
  }
}

// One thread's pairs of a panel and a group of rows: block by block, in a block panel by panel.
template <class Finish>
inline void run_share(const LinearCall& call, int64_t thread) {
  const int64_t num_groups = (call.num_rows + kMicroRows - 1) / kMicroRows;
  const int64_t num_blocks = std::max<int64_t>(1, (num_groups + kGroupsAtOnce - 1) / kGroupsAtOnce);
  const int64_t block_groups = (num_groups + num_blocks - 1) / num_blocks;
  const int64_t num_pairs = num_groups * call.num_panels;
  alignas(64) float partial[kRowsAtOnce * kPanelWidth];
  Finish finish(call, thread);
  int64_t pair = num_pairs * thread / call.num_threads;
  const int64_t last = num_pairs * (thread + 1) / call.num_threads;
  while (pair < last) {
    const int64_t before = pair / (block_groups * call.num_panels) * block_groups;  // groups
    const int64_t groups = std::min(block_groups, num_groups - before);
    const int64_t first_pair = before * call.num_panels;
    const int64_t block_end = std::min(last, first_pair + groups * call.num_panels);
    const int64_t num_rows = std::min((before + groups) * kMicroRows, call.num_rows);
    finish.begin_block(before * kMicroRows);
    while (pair < block_end) {
      const int64_t place = pair - first_pair;
      const int64_t first = place % groups, end = std::min(groups, first + block_end - pair);
      run_panel(call, (before + first) * kMicroRows,
                std::min((before + end) * kMicroRows, call.num_rows), place / groups, partial,
                finish);
      pair += end - first;
    }
    finish.end_block(num_rows - before * kMicroRows);
  }
}

template <class Finish>
void linear(const LinearCall& call) {
  const auto* x = static_cast<const Bf16*>(call.x);
#pragma omp parallel num_threads(static_cast<int>(call.num_threads))
  {
    if (call.scales != nullptr) {
#pragma omp for schedule(static)
      for (int64_t row = 0; row < call.num_rows; ++row)
        call.scales[row] =
            inverse_rms(x + row * call.x_row_stride, 2 * call.num_words, call.eps);
    }
#pragma omp for schedule(static)
    for (int64_t thread = 0; thread < call.num_threads; ++thread) run_share<Finish>(call, thread);
  }
}

}  // namespace blendrun

extern "C" {
int blendrun_panel_width() { return blendrun::kPanelWidth; }
int blendrun_has_bf16_dot() { return BLENDRUN_HAS_BF16_DOT; }
void blendrun_linear_bf16(const blendrun::LinearCall* call) {
  blendrun::linear<blendrun::Store>(*call);
}
void blendrun_linear_argmax_bf16(const blendrun::LinearCall* call) {
  blendrun::linear<blendrun::Best>(*call);
}
}  // extern "C"
