// Activation rounding to int8, four blocks of 32 at once: what 16 at once (prepare.h) leave over of
// rows of 640, 896, … columns.
//
// A single block is a chain of reductions, each a handful of dependent shuffles. Four blocks share
// them: their maxima, their sums and the second halves of their cache lines are transposed
// together. The arithmetic of a block is that of `quantise` in prepare.h.
#pragma once

#include "matmul.h"
#include "simd.h"

#ifdef HR_AVX512

namespace HR_ISA {

// The largest magnitude (as bits) of each of four blocks, from their 16 lane maxima each.
static inline __m128i block_maxima(const __m512i (&m)[4]) {
  const __m512i ab =
      _mm512_max_epi32(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
  const __m512i cd =
      _mm512_max_epi32(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
  // Now one block per element, still one part per 128 bits.
  __m512i all = _mm512_max_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  all = _mm512_max_epi32(all, _mm512_shuffle_i32x4(all, all, 0x4e));
  all = _mm512_max_epi32(all, _mm512_shuffle_i32x4(all, all, 0xb1));
  return _mm512_castsi512_si128(all);
}

// 4 × 16 integers of two blocks (first and second half of each) → their 64 code bytes in order.
static inline __m512i code_bytes(__m512i a0, __m512i a1, __m512i b0, __m512i b1) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i mixed = _mm512_packs_epi16(_mm512_packs_epi32(a0, a1), _mm512_packs_epi32(b0, b1));
  return _mm512_permutexvar_epi32(order, mixed);
}

// The numbers behind the codes (matmul.h), of four blocks. first, second: sums of 16 codes.
static inline void store_numbers(__m128 scale, __m128i first, __m128i second,
                                 headrace::ActivationBlock* out) {
  const __m128i s = _mm_add_epi32(first, second), zero = _mm_setzero_si128();
  const __m128i minus = _mm_sub_epi32(zero, s);
  const __m128i sum = _mm_castps_si128(_mm_mul_ps(scale, _mm_cvtepi32_ps(s)));
  const __m128i pair =
      _mm_or_si128(_mm_and_si128(first, _mm_set1_epi32(0xffff)), _mm_slli_epi32(second, 16));
  const auto both = [](__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  };
  const __m256i f0 = both(_mm_castps_si128(scale), _mm_slli_epi32(minus, 7));
  const __m256i f1 = both(sum, _mm_slli_epi32(_mm_sub_epi32(zero, first), 5));
  const __m256i f2 = both(_mm_slli_epi32(minus, 3), _mm_slli_epi32(_mm_sub_epi32(zero, second), 5));
  const __m256i f3 = both(_mm_slli_epi32(minus, 4), pair);
  const __m256i ab01 = _mm256_unpacklo_epi32(f0, f1), cd01 = _mm256_unpackhi_epi32(f0, f1);
  const __m256i ab23 = _mm256_unpacklo_epi32(f2, f3), cd23 = _mm256_unpackhi_epi32(f2, f3);
  const auto put = [&](int block, __m256i numbers) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(&out[block].scale), numbers);
  };
  put(0, _mm256_unpacklo_epi64(ab01, ab23));
  put(1, _mm256_unpackhi_epi64(ab01, ab23));
  put(2, _mm256_unpacklo_epi64(cd01, cd23));
  put(3, _mm256_unpackhi_epi64(cd01, cd23));
}

// 128 numbers → 4 blocks. False, with nothing written, where a block is tiny or not finite.
static inline bool quantise_four(const float* x, headrace::ActivationBlock* out) {
  static_assert(offsetof(headrace::ActivationBlock, sums) ==
                offsetof(headrace::ActivationBlock, scale) + 28);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most[4];
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b)
    most[b] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * b), magnitude),
                               _mm512_and_si512(_mm512_loadu_si512(x + 32 * b + 16), magnitude));
  const __m128i bits = block_maxima(most);
  constexpr int32_t kInfinity = 0x7f800000, kTiny = (127 - 120) << 23;  // 2^-120
  if (_mm_cmpge_epu32_mask(_mm_sub_epi32(bits, _mm_set1_epi32(kTiny)),
                           _mm_set1_epi32(kInfinity - kTiny)) != 0)
    return false;
  const __m128 amax = _mm_castsi128_ps(bits);
  const __m512 inv = _mm512_broadcast_f32x4(_mm_div_ps(_mm_set1_ps(127.0f), amax));
  const __m512 of_block[4] = {_mm512_permute_ps(inv, 0x00), _mm512_permute_ps(inv, 0x55),
                              _mm512_permute_ps(inv, 0xaa), _mm512_permute_ps(inv, 0xff)};
  const auto code = [&](int block, int half) {
    return _mm512_cvtps_epi32(
        _mm512_mul_ps(_mm512_loadu_ps(x + 32 * block + 16 * half), of_block[block]));
  };
  const __m512i ab = code_bytes(code(0, 0), code(0, 1), code(1, 0), code(1, 1));
  const __m512i cd = code_bytes(code(2, 0), code(2, 1), code(3, 0), code(3, 1));
  const auto put = [&](int block, __m256i codes) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(out[block].codes), codes);
  };
  put(0, _mm512_castsi512_si256(ab));
  put(1, _mm512_extracti64x4_epi64(ab, 1));
  put(2, _mm512_castsi512_si256(cd));
  put(3, _mm512_extracti64x4_epi64(cd, 1));
  // Sums of 4 codes; each 128 bits hold those of one half of a block.
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i s_ab = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, ab);
  const __m512i s_cd = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, cd);
  __m512i s =
      _mm512_add_epi32(_mm512_unpacklo_epi32(s_ab, s_cd), _mm512_unpackhi_epi32(s_ab, s_cd));
  s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, static_cast<_MM_PERM_ENUM>(0x4e)));
  const __m512i halves = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i sums = _mm512_castsi512_si256(_mm512_permutexvar_epi32(halves, s));
  store_numbers(_mm_div_ps(amax, _mm_set1_ps(127.0f)), _mm256_castsi256_si128(sums),
                _mm256_extracti128_si256(sums, 1), out);
  return true;
}

}  // namespace HR_ISA

#endif
