// The best entry of each row of x times a wide weight, exact, of which few entries are computed in
// full. screened_argmax.py is the wrapper and prepares the weight.
//
// Rows of x and columns of the weight are rotated alike, which changes none of their products but
// spreads what is large in them, and are rounded to 8 bits: integer dot products take half as long
// as those of bfloat16. What rounding can change is bounded by Cauchy and Schwarz: with x' and w'
// the rounded ones, |w.x - w'.x'| <= |w - w'| |x| + |w'| |x - x'|. An entry whose upper bound is
// below the lower bound of another one is not the best. The others, a few of a row, are computed
// from the bfloat16 panels in the order of linear.cpp, so that the result is that of
// `linear_argmax` to the last bit.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "linear_finish.h"
#include "micro.h"
#include "rows.h"
#include "simd.h"

namespace blendrun {

// Mirrored field by field by `ScreenCall` in screened_argmax.py. W is the width of a panel.
struct ScreenCall {
  const float* rotated;     // [T, K] rows of x, rotated
  const void* x;            // [T, K] bfloat16, contiguous
  const void* panels;       // [P][K / 2][W] words of 2 bfloat16
  const void* screen;       // [P][K / 4][W] words of 4 int8: the rotated weight, rounded
  const int32_t* offsets;   // [P W] -128 times the sum of a column's int8
  const float* scales;      // [P W] what a column's int8 are multiplied by
  const float* lost;        // [P W] length of what rounding took from a column
  const float* lengths;     // [P W] length of a rounded column
  uint8_t* rounded;         // [T, K] room
  float* best_values;       // [T]
  int64_t* best_columns;    // [T]
  bool* are_finite;         // [T] rows of x, and their entries that are computed
  int64_t* num_exact;       // entries that were computed in full
  int64_t num_rows;         // T
  int64_t num_words;        // K / 4
  int64_t num_panels;       // P
  int64_t num_threads;
};

// Of the lengths of x and a column: more than float32 sums of up to 4,096 inputs are off by, here,
// in rotating, and in linear.cpp.
constexpr float kSlack = 1.0f / 2048;
// Of a value: more than what rounding to bfloat16 can make equal.
constexpr float kRounding = 1.0f / 128;
constexpr float kOffset = 128.0f;  // x is rounded to unsigned numbers, as the instruction wants it

// A rounded row of x. Bounds are in units of its scale.
struct RoundedRow {
  float length = 0.0f;  // of the row
  float lost = 0.0f;    // length of what rounding took, and slack
  bool is_finite = true;
};

struct Candidate {
  int32_t row, column;
  float upper;  // in units of the row's scale
  float value = 0.0f;
};

// Rounds a row to whole numbers from -127 to 127, plus 128.
inline RoundedRow round_row(const float* row, int64_t n, uint8_t* to) {
  VecF highest{}, spoiled{};
  for_vectors(n, [&](int64_t i, int64_t count) {
    const VecF x = load_part(row + i, count);
    spoiled += x * 0.0f;
    highest = maximum(maximum(x, -x), highest);
  });
  if (reduce_sum(spoiled) != 0.0f) {  // NaN
    std::fill_n(to, n, static_cast<uint8_t>(kOffset));
    return {0.0f, 0.0f, false};
  }
  const float top = reduce_max(highest);
  const float inverse = top > 0.0f ? 127.0f / top : 1.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest whole number
  VecF squares{}, lost{};
  for_vectors(n, [&](int64_t i, int64_t count) {
    using VecB = uint8_t __attribute__((vector_size(kLanes)));
    const VecF x = load_part(row + i, count) * inverse;
    const VecF whole = (x + kRound) - kRound;
    squares += x * x;
    lost += (x - whole) * (x - whole);
    const VecB bytes = __builtin_convertvector(__builtin_convertvector(whole + kOffset, VecI), VecB);
    std::memcpy(to + i, &bytes, count);
  });
  const float length = __builtin_sqrtf(reduce_sum(squares));
  return {length, __builtin_sqrtf(reduce_sum(lost)) + kSlack * length, true};
}

// The best value that is certain, and below what no value is the best.
inline float threshold(float certain) {
  return certain - kRounding * (certain < 0.0f ? -certain : certain);
}

// What one thread finds. Of each row it has seen, the highest lower bound.
class Screen {
 public:
  Screen(const ScreenCall& call, const RoundedRow* rows, float* certain,
         std::vector<Candidate>& found)
      : call_(call), rows_(rows), certain_(certain), found_(found) {}

  void begin_block(int64_t first_row, int64_t num_rows) {
    first_row_ = first_row;
    for (int64_t r = 0; r < num_rows; ++r) {
      lower_[r] = broadcast(-kInfinity);
      threshold_[r] = rows_[first_row + r].is_finite ? -kInfinity : kInfinity;
    }
  }

  // Rows from `row` on times a panel; asks for lines from `ahead` on, one for each word.
  template <int Rows>
  void run(int64_t row, int64_t panel, const uint32_t* ahead) {
    const int64_t num_words = call_.num_words, at = panel * kPanelWidth;
    const uint32_t* x = reinterpret_cast<const uint32_t*>(call_.rounded) + row * num_words;
    const uint32_t* words = static_cast<const uint32_t*>(call_.screen) + at * num_words;
    VecI acc[Rows][kPanelVecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < kPanelVecs; ++j)
        acc[r][j] = load<VecI>(call_.offsets + at + j * kLanes);
    for (int64_t w = 0; w < num_words; ++w) {
      if (ahead != nullptr) prefetch(ahead + w * kLineWords);
      VecU column[kPanelVecs];
#pragma GCC unroll 8
      for (int j = 0; j < kPanelVecs; ++j)
        column[j] = load<VecU>(words + w * kPanelWidth + j * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const VecU value = broadcast(load<uint32_t>(x + r * num_words + w));
#pragma GCC unroll 8
        for (int j = 0; j < kPanelVecs; ++j) acc[r][j] = dot_bytes(acc[r][j], value, column[j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) look_at(row + r, panel, acc[r]);
  }

  void end_block(int64_t num_rows) {
    for (int64_t r = 0; r < num_rows; ++r)
      certain_[first_row_ + r] = std::max(certain_[first_row_ + r], reduce_max(lower_[r]));
  }

 private:
  void look_at(int64_t row, int64_t panel, const VecI* acc) {
    const int64_t r = row - first_row_, at = panel * kPanelWidth;
    VecF upper[kPanelVecs], highest = broadcast(-kInfinity), lower = lower_[r];
#pragma GCC unroll 8
    for (int j = 0; j < kPanelVecs; ++j) {
      const int64_t column = at + j * kLanes;
      const VecF value =
          __builtin_convertvector(acc[j], VecF) * load<VecF>(call_.scales + column);
      const VecF off = load<VecF>(call_.lost + column) * rows_[row].length +
                       load<VecF>(call_.lengths + column) * rows_[row].lost;
      upper[j] = value + off;
      highest = maximum(upper[j], highest);
      lower = maximum(value - off, lower);
    }
    lower_[r] = lower;
    if (!any_at_least(highest, threshold_[r])) return;
    // seldom from here on
    threshold_[r] = std::max(threshold_[r], threshold(reduce_max(lower)));
    for (int j = 0; j < kPanelVecs; ++j)
      for (int lane = 0; lane < kLanes; ++lane)
        if (upper[j][lane] >= threshold_[r])
          found_.push_back({static_cast<int32_t>(row),
                            static_cast<int32_t>(at + j * kLanes + lane), upper[j][lane]});
  }

  const ScreenCall& call_;
  const RoundedRow* rows_;
  float* certain_;  // [T]
  std::vector<Candidate>& found_;
  int64_t first_row_ = 0;
  VecF lower_[kRowsAtOnce];
  float threshold_[kRowsAtOnce];
};

// One thread's panels and rows, as in linear.cpp: block by block of rows, in a block panel by panel.
inline void run_screen(const ScreenCall& call, int64_t thread, Screen& screen) {
  const int64_t num_blocks = (call.num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t panel_words = call.num_words * kPanelWidth;
  const auto* words = static_cast<const uint32_t*>(call.screen);
  const int64_t num_pairs = num_blocks * call.num_panels;
  const int64_t last = num_pairs * (thread + 1) / call.num_threads;
  for (int64_t pair = num_pairs * thread / call.num_threads; pair < last;) {
    const int64_t block = pair / call.num_panels, block_end = (block + 1) * call.num_panels;
    const int64_t first_row = call.num_rows * block / num_blocks;
    const int64_t num_rows = call.num_rows * (block + 1) / num_blocks - first_row;
    screen.begin_block(first_row, num_rows);
    for (; pair < std::min(last, block_end); ++pair) {
      const int64_t panel = pair % call.num_panels;
      for_row_groups(static_cast<int>(num_rows), [&](int first, int count) {
        // the first groups ask for the whole of the next panel
        const int64_t asked = first / kMicroRows * call.num_words * kLineWords;
        const uint32_t* ahead =
            asked < panel_words ? words + (panel + 1) * panel_words + asked : nullptr;
        with_constant<kMicroRows>(count, [&](auto rows) {
          screen.run<rows.value>(first_row + first, panel, ahead);
        });
      });
    }
    screen.end_block(num_rows);
  }
}

// An entry as linear.cpp computes it, rounded to bfloat16.
inline float exact_value(const ScreenCall& call, int64_t row, int64_t column) {
  const int64_t num_words = 2 * call.num_words, vector = column % kPanelWidth / kLanes;
  const uint32_t* x = static_cast<const uint32_t*>(call.x) + row * num_words;
  const uint32_t* words = static_cast<const uint32_t*>(call.panels) +
                          column / kPanelWidth * num_words * kPanelWidth + vector * kLanes;
  VecF sum{};
  for (int64_t w = 0; w < num_words; ++w)
    sum = dot<Bf16>(sum, load<VecU>(words + w * kPanelWidth), broadcast(x[w]));
  Bf16 narrow[kLanes];
  store_narrow(narrow, sum);
  return to_float(narrow[column % kLanes]);
}

inline void screened_argmax(const ScreenCall& call) {
  const int64_t num_rows = call.num_rows, num_inputs = 4 * call.num_words;
  std::vector<RoundedRow> rows(num_rows);
  std::vector<std::vector<Candidate>> found(call.num_threads);
  std::vector<float> certain(call.num_threads * num_rows, -kInfinity);
  std::vector<Candidate> left;
#pragma omp parallel num_threads(static_cast<int>(call.num_threads))
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < num_rows; ++row)
      rows[row] =
          round_row(call.rotated + row * num_inputs, num_inputs, call.rounded + row * num_inputs);
#pragma omp for schedule(static)
    for (int64_t thread = 0; thread < call.num_threads; ++thread) {
      Screen screen(call, rows.data(), certain.data() + thread * num_rows, found[thread]);
      run_screen(call, thread, screen);
    }
#pragma omp single
    {
      for (int64_t row = 0; row < num_rows; ++row) {
        float& highest = certain[row];
        for (int64_t thread = 1; thread < call.num_threads; ++thread)
          highest = std::max(highest, certain[thread * num_rows + row]);
        call.best_values[row] = -kInfinity;
        call.best_columns[row] = 0;
        call.are_finite[row] = rows[row].is_finite;
      }
      for (const auto& of_thread : found)
        for (const Candidate& candidate : of_thread)
          if (candidate.upper >= threshold(certain[candidate.row])) left.push_back(candidate);
      *call.num_exact = static_cast<int64_t>(left.size());
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < static_cast<int64_t>(left.size()); ++i)
      left[i].value = exact_value(call, left[i].row, left[i].column);
  }
  for (const Candidate& candidate : left) {
    if (candidate.value - candidate.value != 0.0f) call.are_finite[candidate.row] = false;
    float& value = call.best_values[candidate.row];
    int64_t& column = call.best_columns[candidate.row];
    if (candidate.value > value || (candidate.value == value && candidate.column < column)) {
      value = candidate.value;
      column = candidate.column;
    }
  }
}

}  // namespace blendrun

extern "C" {
int blendrun_has_byte_dot() { return BLENDRUN_HAS_BYTE_DOT; }
void blendrun_screened_argmax_bf16(const blendrun::ScreenCall* call) {
  blendrun::screened_argmax(*call);
}
}  // extern "C"
