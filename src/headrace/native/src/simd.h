// Sixteen virtual lanes, the same on every instruction set.
//
// Kernels are written once against f32x16 / i32x16; each kernel file is compiled once per level
// (avx2, avx512, avx512bf16) into namespace HR_ISA. Every function here is defined so that all
// levels give equal bits (docs/numerics.md): explicit fused multiply-add, no approximate
// reciprocals, no horizontal add whose order the instruction chooses. Kernel threads run with FTZ
// and DAZ set.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace HR_ISA {

#if defined(HR_ISA_avx512) || defined(HR_ISA_avx512bf16)
#define HR_AVX512 1

struct f32x16 {
  __m512 v;
};
struct i32x16 {
  __m512i v;
};
using mask16 = __mmask16;

static inline mask16 first_lanes(int n) {  // lanes 0 … n-1; n in 0 … 16
  return static_cast<mask16>((1u << n) - 1u);
}
static inline mask16 lanes_of(uint32_t bits) { return static_cast<mask16>(bits); }  // low 16 bits
static inline bool any(mask16 m) { return m != 0; }
static inline uint32_t lane_bits(mask16 m) { return m; }  // bit l = lane l

static inline f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline f32x16 load_first(const float* p, int n) {  // the rest is +0; reads n floats only
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
static inline void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
static inline void store_first(float* p, f32x16 a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
static inline f32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
static inline f32x16 zero() { return {_mm512_setzero_ps()}; }
static inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {  // a·b + c, one rounding
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
static inline f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
// max / min: the second operand when either is NaN, as in SSE.
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline mask16 less(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
static inline mask16 is_nan(f32x16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
static inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  return {_mm512_mask_blend_ps(m, no.v, yes.v)};
}

static inline i32x16 loadi(const void* p) { return {_mm512_loadu_si512(p)}; }
static inline void storei(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
static inline i32x16 splati(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline i32x16 zeroi() { return {_mm512_setzero_si512()}; }
static inline i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static inline i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
static inline i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
static inline i32x16 muli(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
static inline i32x16 maxi(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
static inline i32x16 mini(i32x16 a, i32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
static inline i32x16 select(mask16 m, i32x16 yes, i32x16 no) {
  return {_mm512_mask_blend_epi32(m, no.v, yes.v)};
}
template <int N>
static inline i32x16 shl(i32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
static inline i32x16 shr(i32x16 a) {  // logical
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
static inline i32x16 shr_signed(i32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
static inline i32x16 to_int(f32x16 a) {  // round half to even
  return {_mm512_cvtps_epi32(a.v)};
}
static inline i32x16 truncate(f32x16 a) { return {_mm512_cvttps_epi32(a.v)}; }
static inline f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline i32x16 bits(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
static inline f32x16 from_bits(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }

// 16 half floats → f32, exactly.
static inline f32x16 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
// f32 → 16 half floats, round half to even.
static inline void store_f16(void* p, f32x16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// The 16 low halves of the lanes as 16-bit numbers.
static inline void store_low16(void* p, i32x16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
static inline i32x16 load_u16(const void* p) {  // 16 × uint16 → int32 lanes
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
static inline i32x16 load_u8(const void* p) {  // 16 × uint8 → int32 lanes
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
static inline i32x16 load_s8(const void* p) {  // 16 × int8 → int32 lanes
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// 32 lanes, each in −128 … 127, as signed bytes.
static inline __m256i to_bytes(i32x16 a, i32x16 b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(a.v)),
                                 _mm512_cvtepi32_epi8(b.v), 1);
}
// Integers are exact, so the order of such reductions is free.
static inline int32_t max_lane(i32x16 a) { return _mm512_reduce_max_epi32(a.v); }

// acc + Σ over 4 bytes of u (unsigned) · s (signed), in every lane, exact in int32.
static inline i32x16 dot4(i32x16 acc, i32x16 u, i32x16 s) {
  return {_mm512_dpbusd_epi32(acc.v, u.v, s.v)};
}

// acc + Σ over 2 int16 of x · y, in every lane.
static inline i32x16 dot2_words(i32x16 acc, i32x16 x, i32x16 y) {
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(x.v, y.v))};
}
// Every byte of index (0 … 15) → its byte of the 16-byte table.
static inline i32x16 look_up(const void* table, i32x16 index) {
  const __m128i t = _mm_loadu_si128(static_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index.v)};
}

#else  // AVX2

struct f32x16 {
  __m256 a, b;
};
struct i32x16 {
  __m256i a, b;
};
struct mask16 {  // all-ones or all-zeros lanes
  __m256i a, b;
};

static inline mask16 first_lanes(int n) {
  const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), i),
          _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), i)};
}
static inline mask16 lanes_of(uint32_t bits) {
  const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(bits));
  const __m256i a = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), b = _mm256_slli_epi32(a, 8);
  return {_mm256_cmpeq_epi32(_mm256_and_si256(all, a), a),
          _mm256_cmpeq_epi32(_mm256_and_si256(all, b), b)};
}
static inline bool any(mask16 m) {
  return !_mm256_testz_si256(m.a, m.a) || !_mm256_testz_si256(m.b, m.b);
}
static inline uint32_t lane_bits(mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m.a))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m.b))) << 8;
}

static inline f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline f32x16 load_first(const float* p, int n) {
  mask16 m = first_lanes(n);
  return {_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
}
static inline void store(float* p, f32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
static inline void store_first(float* p, f32x16 x, int n) {
  mask16 m = first_lanes(n);
  _mm256_maskstore_ps(p, m.a, x.a);
  _mm256_maskstore_ps(p + 8, m.b, x.b);
}
static inline f32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
#define HR_F32_OP(name, intrinsic)                     \
  static inline f32x16 name(f32x16 x, f32x16 y) {      \
    return {intrinsic(x.a, y.a), intrinsic(x.b, y.b)}; \
  }
HR_F32_OP(operator+, _mm256_add_ps)
HR_F32_OP(operator-, _mm256_sub_ps)
HR_F32_OP(operator*, _mm256_mul_ps)
HR_F32_OP(operator/, _mm256_div_ps)
HR_F32_OP(max, _mm256_max_ps)
HR_F32_OP(min, _mm256_min_ps)
#undef HR_F32_OP
static inline f32x16 fma(f32x16 x, f32x16 y, f32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline f32x16 sqrt(f32x16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
static inline mask16 less(f32x16 x, f32x16 y) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
static inline mask16 is_nan(f32x16 x) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
          _mm256_castps_si256(_mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}
static inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(m.a)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(m.b))};
}

static inline i32x16 loadi(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
static inline void storei(void* p, i32x16 x) {
  __m256i* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, x.a);
  _mm256_storeu_si256(q + 1, x.b);
}
static inline i32x16 splati(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline i32x16 zeroi() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
#define HR_I32_OP(name, intrinsic)                     \
  static inline i32x16 name(i32x16 x, i32x16 y) {      \
    return {intrinsic(x.a, y.a), intrinsic(x.b, y.b)}; \
  }
HR_I32_OP(operator+, _mm256_add_epi32)
HR_I32_OP(operator-, _mm256_sub_epi32)
HR_I32_OP(operator&, _mm256_and_si256)
HR_I32_OP(operator|, _mm256_or_si256)
HR_I32_OP(muli, _mm256_mullo_epi32)
HR_I32_OP(maxi, _mm256_max_epi32)
HR_I32_OP(mini, _mm256_min_epi32)
#undef HR_I32_OP
static inline i32x16 select(mask16 m, i32x16 yes, i32x16 no) {
  return {_mm256_blendv_epi8(no.a, yes.a, m.a), _mm256_blendv_epi8(no.b, yes.b, m.b)};
}
template <int N>
static inline i32x16 shl(i32x16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
static inline i32x16 shr(i32x16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
static inline i32x16 to_int(f32x16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline i32x16 truncate(f32x16 x) {
  return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)};
}
static inline f32x16 to_float(i32x16 x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
static inline i32x16 bits(f32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
static inline f32x16 from_bits(i32x16 x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}

static inline f32x16 load_f16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
static inline void store_f16(void* p, f32x16 x) {
  __m128i* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void store_low16(void* p, i32x16 x) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  __m256i packed = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
static inline i32x16 load_u16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
static inline i32x16 load_u8(const void* p) {
  __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
static inline i32x16 load_s8(const void* p) {
  __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
static inline __m256i to_bytes(i32x16 x, i32x16 y) {
  // Packing works in halves of 128 bits, so groups of four come out as x0 x2 y0 y2 x1 x3 y1 y3.
  __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b));
  return _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline int32_t max_lane(i32x16 x) {
  __m256i half = _mm256_max_epi32(x.a, x.b);
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

static inline i32x16 dot2_words(i32x16 acc, i32x16 x, i32x16 y) {
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b))};
}
static inline i32x16 look_up(const void* table, i32x16 index) {
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, index.a), _mm256_shuffle_epi8(t, index.b)};
}

// There is no exact dot of 4 bytes here: products of bytes are summed by pairs in 16 bits, and
// pairs in int32 later. Lanes are those of i32x16, two numbers in each.
struct i16x32 {
  __m256i a, b;
};
static inline i16x32 zero_pairs() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
// acc + the sums of 2 bytes of u (unsigned) · s (signed). The caller keeps acc within 16 bits.
static inline i16x32 dot2(i16x32 acc, i32x16 u, i32x16 s) {
  acc.a = _mm256_add_epi16(acc.a, _mm256_maddubs_epi16(u.a, s.a));
  acc.b = _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(u.b, s.b));
  // Without this GCC turns a run of sums into a tree, which needs all products at once: spills.
  asm("" : "+x"(acc.a), "+x"(acc.b));
  return acc;
}
// acc + factor · (both numbers of every lane).
static inline i32x16 add_pairs(i32x16 acc, i16x32 pairs, int16_t factor) {
  const __m256i f = _mm256_set1_epi16(factor);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(pairs.a, f)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(pairs.b, f))};
}

#endif

// The sums of the first and of the second 16 signed bytes.
struct TwoSums {
  int32_t first, second;
};
static inline TwoSums sum_bytes(__m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
  __m256i s = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));  // 4 + 4 sums of 4
  s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
  s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
  return {_mm_cvtsi128_si32(_mm256_castsi256_si128(s)),
          _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1))};
}

// f32 → bf16 in the low 16 bits of each lane, round half to even; NaN stays NaN.
static inline i32x16 to_bf16(f32x16 x) {
  i32x16 b = bits(x);
  i32x16 rounded = shr<16>(b + splati(0x7fff) + (shr<16>(b) & splati(1)));
  i32x16 quiet = shr<16>(b) | splati(0x40);
  return bits(select(is_nan(x), from_bits(quiet), from_bits(rounded)));
}
static inline f32x16 from_bf16(i32x16 low16) { return from_bits(shl<16>(low16)); }
static inline f32x16 round_bf16(f32x16 x) { return from_bf16(to_bf16(x)); }

// Lanes hold a pair of bf16 (even element low, odd element high):
// fma(even, even', fma(odd, odd', acc)), the definition of the contract and of VDPBF16PS.
static inline f32x16 dot_bf16(f32x16 acc, i32x16 x, i32x16 y) {
#ifdef HR_ISA_avx512bf16
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)x.v, (__m512bh)y.v)};
#else
  const i32x16 high = splati(static_cast<int32_t>(0xffff0000u));
  acc = fma(from_bits(x & high), from_bits(y & high), acc);
  return fma(from_bits(shl<16>(x)), from_bits(shl<16>(y)), acc);
#endif
}

// The two halves of the lanes, for the fixed tree l += l+8, then +4, +2, +1.
static inline __m256 low_half(f32x16 x) {
#ifdef HR_AVX512
  return _mm512_castps512_ps256(x.v);
#else
  return x.a;
#endif
}
static inline __m256 high_half(f32x16 x) {
#ifdef HR_AVX512
  return _mm512_extractf32x8_ps(x.v, 1);
#else
  return x.b;
#endif
}
static inline float tree_sum(f32x16 x) {
  const __m256 by8 = _mm256_add_ps(low_half(x), high_half(x));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
static inline float tree_max(f32x16 x) {  // no lane may be NaN
  const __m256 by8 = _mm256_max_ps(low_half(x), high_half(x));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

}  // namespace HR_ISA
