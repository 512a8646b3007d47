// Vectors of 32-bit lanes, as wide as the machine this is compiled for (-march=native).
//
// Everything is written with the vector extensions of GCC and Clang, so that one source serves
// AVX-512, AVX2, SSE2 and NEON. The only intrinsics are of AVX-512: dot products of bfloat16 and of
// bytes, comparisons and reductions, and those that take a float apart and put it together.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define BLENDRUN_HAS_BF16_DOT 1
#else
#define BLENDRUN_HAS_BF16_DOT 0
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define BLENDRUN_HAS_BYTE_DOT 1
#else
#define BLENDRUN_HAS_BYTE_DOT 0
#endif

namespace blendrun {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kVectorRegisters = 32;
#else
constexpr int kLanes = 4;
constexpr int kVectorRegisters = 16;
#endif

inline const char* instruction_set() {
#if BLENDRUN_HAS_BF16_DOT
  return "AVX-512 with bfloat16 dot products";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#elif defined(__aarch64__)
  return "NEON";
#else
  return "128-bit vectors";
#endif
}

using VecF = float __attribute__((vector_size(4 * kLanes)));
using VecI = int32_t __attribute__((vector_size(4 * kLanes)));
using VecU = uint32_t __attribute__((vector_size(4 * kLanes)));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- elements of the caches ----------------------------------------------------------------

struct Bf16 {
  uint16_t bits;
};

// How many elements of type E share one 32-bit lane ("word").
template <class E>
constexpr int kPerWord = 4 / static_cast<int>(sizeof(E));

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// ---- loads, stores, broadcasts -------------------------------------------------------------

template <class Vec, class T>
inline Vec load(const T* from) {
  Vec value;
  std::memcpy(&value, from, sizeof(Vec));
  return value;
}

template <class Vec, class T>
inline void store(T* to, Vec value) {
  std::memcpy(to, &value, sizeof(Vec));
}

inline VecF broadcast(float x) { return x - VecF{}; }
inline VecU broadcast(uint32_t x) { return x - VecU{}; }

inline VecF maximum(VecF a, VecF b) { return a > b ? a : b; }

inline float reduce_max(VecF v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
#endif
}

inline float reduce_sum(VecF v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

// Whether a lane of v is at least `least`.
inline bool any_at_least(VecF v, float least) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)broadcast(least), _CMP_GE_OQ) != 0;
#else
  return reduce_max(v) >= least;
#endif
}

// ---- dot products of words -----------------------------------------------------------------

// acc[i] += a[i] * b[i], where lane i of a and b holds kPerWord<E> elements.
template <class E>
inline VecF dot(VecF acc, VecU a, VecU b);

template <>
inline VecF dot<float>(VecF acc, VecU a, VecU b) {
  return acc + (VecF)a * (VecF)b;
}

template <>
inline VecF dot<Bf16>(VecF acc, VecU a, VecU b) {
#if BLENDRUN_HAS_BF16_DOT
  return (VecF)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
  constexpr uint32_t kHigh = 0xffff0000u;
  acc += (VecF)(a << 16) * (VecF)(b << 16);  // even elements: low halves
  return acc + (VecF)(a & kHigh) * (VecF)(b & kHigh);
#endif
}

// acc[i] += a[i] * b[i], where lane i of a holds 4 unsigned bytes, that of b 4 signed ones.
inline VecI dot_bytes(VecI acc, VecU a, VecU b) {
#if BLENDRUN_HAS_BYTE_DOT
  return (VecI)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#else
  for (int shift = 0; shift < 32; shift += 8)
    acc += (VecI)(a >> shift & 0xffu) * ((VecI)(b << (24 - shift)) >> 24);
  return acc;
#endif
}

// ---- narrowing stores ----------------------------------------------------------------------

inline void store_narrow(float* to, VecF value) { store(to, value); }

// Rounds to nearest even, as torch does.
inline void store_narrow(Bf16* to, VecF value) {
#if BLENDRUN_HAS_BF16_DOT
  const auto narrow = _mm512_cvtneps_pbh((__m512)value);
#else
  using VecH = uint16_t __attribute__((vector_size(2 * kLanes)));
  const VecU bits = (VecU)value;
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecH narrow = __builtin_convertvector(rounded, VecH);
#endif
  std::memcpy(to, &narrow, sizeof(narrow));
}

// ---- exponential ---------------------------------------------------------------------------

// 2^f for |f| <= 1/2: minimax polynomial, relative error 2e-9 (E = float) or 8e-5 (E = Bf16,
// whose results are rounded to 8 bits anyway).
template <class E>
inline VecF exp2_fraction(VecF f) {
  if constexpr (sizeof(E) == 4) {
    VecF y = f * 1.53458116e-4f + 1.33999312e-3f;
    y = y * f + 9.61848896e-3f;
    y = y * f + 5.55032878e-2f;
    y = y * f + 2.40226469e-1f;
    y = y * f + 6.93147206e-1f;
    return y * f + 1.0f;
  } else {
    VecF y = f * 5.51716700e-2f + 2.42611130e-1f;
    y = y * f + 6.93260990e-1f;
    return y * f + 9.99928070e-1f;
  }
}

// 2^x; 0 far below x = -126, and so for minus infinity; infinity far above 126.
template <class E>
inline VecF exp2_bounded(VecF x) {
#if defined(__AVX512DQ__)
  constexpr int kToNearest = 8;  // without a precision exception
  const VecF fraction = (VecF)_mm512_reduce_ps((__m512)x, kToNearest);
  return (VecF)_mm512_scalef_ps((__m512)exp2_fraction<E>(fraction), (__m512)(x - fraction));
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low bits
  const VecF lowest = broadcast(-126.0f), highest = broadcast(126.0f);
  const VecF above = maximum(x, lowest), bounded = above < highest ? above : highest;
  const VecF shifted = bounded + kRound;
  const VecF fraction = bounded - (shifted - kRound);
  const VecI exponent = (VecI)shifted << 23;
  const VecF power = (VecF)((VecI)exp2_fraction<E>(fraction) + exponent);
  return x < lowest ? VecF{} : x > highest ? broadcast(kInfinity) : power;
#endif
}

// 1 / x; 14 bits of it where results are rounded to 8 anyway.
template <class E>
inline VecF reciprocal(VecF x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(E) == 2) return (VecF)_mm512_rcp14_ps((__m512)x);
#endif
  return 1.0f / x;
}

}  // namespace blendrun
