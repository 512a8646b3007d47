// What becomes of a row's sums when a panel is finished: they are stored, or the best is remembered.
#pragma once

#include <algorithm>
#include <cstdint>

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
  float* scales;         // [T], room for what rows are multiplied by to have an RMS of 1, or null
  float* best_values;    // [threads, T], of the best of the columns that a thread has seen
  int64_t* best_columns; // [threads, T]
  bool* are_finite;      // [threads, T]
  int64_t num_rows;      // T
  int64_t x_row_stride;  // elements, even
  int64_t num_words;     // K / 2
  int64_t num_panels;    // P
  int64_t out_width;     // N; with is_gated half as many as there are columns
  int64_t is_gated;      // panels are W / 2 gates and the W / 2 columns that they are for
  int64_t is_added;
  int64_t num_threads;
  float eps;             // added to the mean square of a row
};

constexpr int kPanelVecs = kMicroVecs;
constexpr int kPanelWidth = kPanelVecs * kLanes;
constexpr int64_t kGroupsAtOnce = 16;  // of kMicroRows rows of x: at 1,536 inputs 295 KB
constexpr int64_t kRowsAtOnce = kGroupsAtOnce * kMicroRows;

// One row's results for a panel, in float32.
inline void results(const LinearCall& call, int64_t row, int64_t panel, const VecF* sums,
                    VecF* value) {
  const auto* bias = static_cast<const Bf16*>(call.bias);
  const float scale = call.scales == nullptr ? 1.0f : call.scales[row];
  for (int j = 0; j < kPanelVecs; ++j) {
    value[j] = sums[j] * scale;
    if (bias != nullptr) value[j] += widen(bias + panel * kPanelWidth + j * kLanes);
  }
}

// Writes results, or adds them to what is there.
class Store {
 public:
  Store(const LinearCall& call, int64_t /*thread*/) : call_(call) {}

  void begin_block(int64_t /*first_row*/) {}
  void end_block(int64_t /*num_rows*/) {}

  void finish(int64_t row, int64_t panel, const VecF* sums) {
    VecF value[kPanelVecs];
    results(call_, row, panel, sums, value);
    int num_vecs = kPanelVecs;
    if (call_.is_gated) {
      num_vecs /= 2;
      for (int j = 0; j < num_vecs; ++j) value[j] = silu<Bf16>(value[j]) * value[j + num_vecs];
    }
    Bf16* out = static_cast<Bf16*>(call_.out) + row * call_.out_width + panel * num_vecs * kLanes;
    for (int j = 0; j < num_vecs; ++j) {
      if (call_.is_added) value[j] += widen(out + j * kLanes);
      store_narrow(out + j * kLanes, value[j]);
    }
  }

 private:
  const LinearCall& call_;
};

// Keeps of each row the best result, rounded as `Store` would have, and its column; the lowest one
// where several are equal. Multiplying by 0 turns infinity into NaN, and NaN stays in a sum.
class Best {
 public:
  Best(const LinearCall& call, int64_t thread) : call_(call), thread_(thread) {}

  void begin_block(int64_t first_row) {
    first_row_ = first_row;
    std::fill(top_, top_ + kRowsAtOnce, broadcast(-kInfinity));
    std::fill(vector_, vector_ + kRowsAtOnce, VecI{});
    std::fill(spoiled_, spoiled_ + kRowsAtOnce, VecF{});
  }

  void finish(int64_t row, int64_t panel, const VecF* sums) {
    VecF value[kPanelVecs];
    results(call_, row, panel, sums, value);
    const int64_t r = row - first_row_;
    for (int j = 0; j < kPanelVecs; ++j) {
      Bf16 narrow[kLanes];
      store_narrow(narrow, value[j]);
      const VecF x = widen(narrow);
      spoiled_[r] += x * 0.0f;
      const VecI number = static_cast<int32_t>(panel * kPanelVecs + j) - VecI{};
      vector_[r] = x > top_[r] ? number : vector_[r];
      top_[r] = maximum(x, top_[r]);
    }
  }

  void end_block(int64_t num_rows) {
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t at = thread_ * call_.num_rows + first_row_ + r;
      const float highest = reduce_max(top_[r]);
      int64_t column = INT64_MAX;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t own = int64_t{vector_[r][lane]} * kLanes + lane;
        if (top_[r][lane] == highest) column = std::min(column, own);
      }
      call_.best_values[at] = highest;
      call_.best_columns[at] = column;
      call_.are_finite[at] = reduce_sum(spoiled_[r]) == 0.0f;
    }
  }

 private:
  const LinearCall& call_;
  int64_t thread_, first_row_ = 0;
  VecF top_[kRowsAtOnce], spoiled_[kRowsAtOnce];
  VecI vector_[kRowsAtOnce];  // number of the vector, among all of the panels', where top_ was
};

}  // namespace blendrun
