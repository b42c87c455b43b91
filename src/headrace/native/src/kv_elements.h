// How keys and values lie in KV memory, and the arithmetic each number format does on them.
//
// Both products of attention walk pairs: keys as [D/2][16 positions][2], values as
// [8 position pairs][D][2] per run of 16 positions. Elements<format> loads 16 such pairs and
// defines
//   dot(acc, x, y) = fma(x.even, y.even, fma(x.odd, y.odd, acc))   in every lane,
// packed (two bf16 in 32 bits) where the instruction exists, split into two float vectors
// elsewhere; both give the same bits. Operand is the in-memory form of the broadcast side (queries,
// probabilities): consecutive numbers, rounded to bf16 with bf16 KV.
#pragma once

#include <cstddef>
#include <cstring>

#include "simd.h"
#include "step.h"

namespace HR_ISA {

using headrace::KVFormat;

#ifdef HR_AVX512
inline constexpr bool kWide = true;  // 32 vector registers of 16 lanes; AVX2 has 16 of 8
#else
inline constexpr bool kWide = false;
#endif

// The even and the odd elements of 32 consecutive floats (a first, then b).
static inline void deinterleave(f32x16 a, f32x16 b, f32x16& even, f32x16& odd) {
#ifdef HR_AVX512
  const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i o = _mm512_add_epi32(e, _mm512_set1_epi32(1));
  even = {_mm512_permutex2var_ps(a.v, e, b.v)};
  odd = {_mm512_permutex2var_ps(a.v, o, b.v)};
#else
  const auto pick = [](__m256 x, __m256 y, auto shuffle) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(shuffle(x, y)), 0xd8));
  };
  const auto evens = [](__m256 x, __m256 y) { return _mm256_shuffle_ps(x, y, 0x88); };
  const auto odds = [](__m256 x, __m256 y) { return _mm256_shuffle_ps(x, y, 0xdd); };
  even = {pick(a.a, a.b, evens), pick(b.a, b.b, evens)};
  odd = {pick(a.a, a.b, odds), pick(b.a, b.b, odds)};
#endif
}

struct SplitPair {
  f32x16 even, odd;
};

// What the formats whose pairs are widened to two float vectors share.
struct SplitElements {
  using Operand = float;
  using Pair = SplitPair;
  static constexpr int max_rows = kWide ? 6 : 3;  // register block: rows × vectors
  static constexpr int max_vectors = kWide ? 2 : 1;

  static inline Pair broadcast(const float* x) { return {splat(x[0]), splat(x[1])}; }
  static inline f32x16 dot(f32x16 acc, const Pair& x, const Pair& y) {
    return fma(x.even, y.even, fma(x.odd, y.odd, acc));
  }
  static inline void store_two(float* out, f32x16 a, f32x16 b) {  // operands already rounded
    store(out, a);
    store(out + 16, b);
  }
  static inline Pair only_even(const Pair& x) { return {x.even, zero()}; }
  static inline Pair only_odd(const Pair& x) { return {zero(), x.odd}; }
};

template <KVFormat format>
struct Elements;

template <>
struct Elements<KVFormat::F32> : SplitElements {
  static constexpr int bytes = 4;
  static inline void store_operand(float* out, f32x16 x) { store(out, x); }
  static inline void store_operands(float* out, f32x16 a, f32x16 b) { store_two(out, a, b); }
  static inline Pair load_pairs(const std::byte* p) {
    const float* x = reinterpret_cast<const float*>(p);
    Pair y;
    deinterleave(load(x), load(x + 16), y.even, y.odd);
    return y;
  }
};

template <>
struct Elements<KVFormat::F16> : SplitElements {
  static constexpr int bytes = 2;
  static inline void store_operand(float* out, f32x16 x) { store(out, x); }
  static inline void store_operands(float* out, f32x16 a, f32x16 b) { store_two(out, a, b); }
  static inline Pair load_pairs(const std::byte* p) {
    Pair y;
    deinterleave(load_f16(p), load_f16(p + 32), y.even, y.odd);
    return y;
  }
};

#ifdef HR_ISA_avx512bf16
template <>
struct Elements<KVFormat::BF16> {
  using Operand = uint16_t;
  using Pair = i32x16;
  static constexpr int bytes = 2, max_rows = 6, max_vectors = 4;

  // Unlike to_bf16 the instruction takes subnormals for zero; with FTZ no operand is one.
  static inline void store_operand(uint16_t* out, f32x16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)_mm512_cvtneps_pbh(x.v));
  }
  static inline void store_operands(uint16_t* out, f32x16 a, f32x16 b) {  // a first
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v));
  }
  static inline Pair load_pairs(const std::byte* p) { return loadi(p); }
  static inline Pair broadcast(const uint16_t* x) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
    return splati(pair);
  }
  static inline f32x16 dot(f32x16 acc, Pair x, Pair y) { return dot_bf16(acc, x, y); }
  static inline Pair only_even(Pair x) { return x & splati(0xffff); }
  static inline Pair only_odd(Pair x) { return x & splati(static_cast<int32_t>(0xffff0000u)); }
};
#else
template <>
struct Elements<KVFormat::BF16> : SplitElements {
  static constexpr int bytes = 2;
  static inline void store_operand(float* out, f32x16 x) { store(out, round_bf16(x)); }
  static inline void store_operands(float* out, f32x16 a, f32x16 b) {
    store_two(out, round_bf16(a), round_bf16(b));
  }
  static inline Pair load_pairs(const std::byte* p) {
    const i32x16 x = loadi(p);
    return {from_bits(shl<16>(x)), from_bits(x & splati(static_cast<int32_t>(0xffff0000u)))};
  }
};
#endif

// The first n of 16 pairs, the rest +0; reads no further.
template <class E>
static inline typename E::Pair load_first_pairs(const std::byte* p, int n) {
  alignas(64) std::byte padded[32 * E::bytes] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * 2 * E::bytes);
  return E::load_pairs(padded);
}

// Asks for the memory of 16 pairs, into the first-level cache.
template <class E>
static inline void prefetch_pairs(const std::byte* p) {
  for (int i = 0; i < 32 * E::bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
}

// The run of 16 positions that starts at `offset` (a multiple of 16) of a block: 16 · dim elements.
static inline std::byte* key_run(const headrace::KVMemory& m, int64_t layer, int64_t block,
                                 int64_t head, int64_t offset, int64_t bytes) {
  return m.base + layer * m.layer_stride + block * m.block_stride +
         (head * m.block_size + offset) * m.k_dim * bytes;
}
static inline std::byte* value_run(const headrace::KVMemory& m, int64_t layer, int64_t block,
                                   int64_t head, int64_t offset, int64_t bytes) {
  return m.base + layer * m.layer_stride + block * m.block_stride + m.v_offset +
         (head * m.block_size + offset) * m.v_dim * bytes;
}

}  // namespace HR_ISA
