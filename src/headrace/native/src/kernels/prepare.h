// Activations as a matmul wants them, for every kernel that makes some (matmul.h has the layouts).
//
// prepare_row rounds n floats of one row into its area, from any multiple of 32 columns on. The
// arithmetic is docs/numerics.md's, "Activation rounding, int8".
#pragma once

#include "matmul.h"
#include "simd.h"

namespace HR_ISA {

using headrace::ActivationBlock;
using headrace::ActivationKind;
using headrace::kBlock;

inline constexpr int32_t kInfinityBits = 0x7f800000, kTinyBits = (127 - 120) << 23;  // 2^-120

// One block. n: numbers present, 1 … 32; the others count as 0.
static inline void quantise(const float* x, int n, ActivationBlock* out) {
  const f32x16 x0 = load_first(x, n < 16 ? n : 16);
  const f32x16 x1 = n > 16 ? load_first(x + 16, n - 16) : zero();
  // Without the sign bit, floats order as integers, infinities and NaNs above all others.
  const i32x16 magnitude = splati(0x7fffffff);
  const int32_t most = max_lane(maxi(bits(x0) & magnitude, bits(x1) & magnitude));
  if (most >= kInfinityBits || most < kTinyBits) {
    *out = ActivationBlock{};
    if (most >= kInfinityBits) out->scale = out->sum = __builtin_nanf("");
    return;
  }
  float amax;
  __builtin_memcpy(&amax, &most, 4);
  const f32x16 inv = splat(127.0f / amax);
  // |x · inv| ≤ 127 · (1 + 2^-23), so rounding never passes ±127.
  const __m256i codes = to_bytes(to_int(x0 * inv), to_int(x1 * inv));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->codes), codes);
  const TwoSums sums = sum_bytes(codes);
  const int32_t s = sums.first + sums.second;
  out->scale = amax / 127.0f;
  out->sum = out->scale * static_cast<float>(s);
  out->minus8 = -8 * s;
  out->minus16 = -16 * s;
  out->minus128 = -128 * s;
  out->minus32[0] = -32 * sums.first;
  out->minus32[1] = -32 * sums.second;
  out->sums[0] = static_cast<int16_t>(sums.first);
  out->sums[1] = static_cast<int16_t>(sums.second);
}

#ifdef HR_AVX512
// The same for 16 whole blocks, with one lane per block wherever a block has one number: the
// largest magnitudes, the divisions, the sums. Three times as fast.

// Lane b = combine over the 16 lanes of v[b]. Each step halves what is left of every vector and
// puts two vectors side by side; the order of `v` makes lane b end up in place b.
template <class Combine>
static inline __m512i reduce_16(const __m512i (&v)[16], Combine combine) {
  __m512i half[8], quarter[4], pair[2];
  const auto source = [&](int i) { return v[i % 4 * 4 + i / 4]; };
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i a = source(2 * i), b = source(2 * i + 1);
    half[i] = combine(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    quarter[i] = combine(_mm512_shuffle_i64x2(half[2 * i], half[2 * i + 1], 0x88),
                         _mm512_shuffle_i64x2(half[2 * i], half[2 * i + 1], 0xdd));
  // Now lane 4c + j of quarter[i] belongs to source(4i + c).
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    pair[i] = combine(_mm512_unpacklo_epi64(quarter[2 * i], quarter[2 * i + 1]),
                      _mm512_unpackhi_epi64(quarter[2 * i], quarter[2 * i + 1]));
  const __m512 a = _mm512_castsi512_ps(pair[0]), b = _mm512_castsi512_ps(pair[1]);
  return combine(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                 _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}

// Sums of code bytes: codes[i] holds blocks 2i and 2i + 1; lane b = the sum over the first (second)
// 16 codes of block b.
static inline void sum_codes_16(const __m512i (&codes)[8], __m512i& first, __m512i& second) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i fours[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m512i pair[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i a = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, codes[4 * h + 2 * i]);
      const __m512i b = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, codes[4 * h + 2 * i + 1]);
      pair[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const __m512 a = _mm512_castsi512_ps(pair[0]), b = _mm512_castsi512_ps(pair[1]);
    // Lane 4g + j: group g of codes[4h + j]; groups are first and second half, of even, odd block.
    fours[h] = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
  }
  const __m512i index = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
  first = _mm512_permutex2var_epi32(fours[0], index, fours[1]);
  second =
      _mm512_permutex2var_epi32(fours[0], _mm512_add_epi32(index, _mm512_set1_epi32(4)), fours[1]);
}

// Codes of blocks a and b (two vectors of rounded lanes each) as 64 bytes.
static inline __m512i pack_codes(i32x16 a0, i32x16 a1, i32x16 b0, i32x16 b1) {
  // Packing works in quarters of 128 bits: words come out as a0 a1 b0 b1 | a0 a1 b0 b1 | …
  const __m512i mixed =
      _mm512_packs_epi16(_mm512_packs_epi32(a0.v, a1.v), _mm512_packs_epi32(b0.v, b1.v));
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), mixed);
}

static inline void quantise_16(const float* x, ActivationBlock* out) {
  const i32x16 magnitude = splati(0x7fffffff);
  __m512i largest[16];
#pragma GCC unroll 16
  for (int b = 0; b < 16; ++b)
    largest[b] =
        maxi(bits(load(x + 32 * b)) & magnitude, bits(load(x + 32 * b + 16)) & magnitude).v;
  const __m512i most =
      reduce_16(largest, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); });
  const f32x16 amax = from_bits({most});
  alignas(64) float inv[16];
  store(inv, splat(127.0f) / amax);
  __m512i codes[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const float* a = x + 64 * i;
    const f32x16 ia = splat(inv[2 * i]), ib = splat(inv[2 * i + 1]);
    codes[i] = pack_codes(to_int(load(a) * ia), to_int(load(a + 16) * ia),
                          to_int(load(a + 32) * ib), to_int(load(a + 48) * ib));
  }
  i32x16 first, second;
  sum_codes_16(codes, first.v, second.v);
  const i32x16 s = first + second;
  const f32x16 scale = amax / splat(127.0f);
  // The other 32 bytes of the blocks: eight fields of 16 lanes, turned into 16 rows of 8.
  const __m512i field[8] = {bits(scale).v,
                            bits(scale * to_float(s)).v,
                            (zeroi() - shl<3>(s)).v,
                            (zeroi() - shl<4>(s)).v,
                            (zeroi() - shl<7>(s)).v,
                            (zeroi() - shl<5>(first)).v,
                            (zeroi() - shl<5>(second)).v,
                            ((first & splati(0xffff)) | shl<16>(second)).v};
  __m512i row[2][4];  // [h][k]: fields 4h … 4h + 3 of blocks k, 4 + k, 8 + k, 12 + k
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m512i ac = _mm512_unpacklo_epi32(field[4 * h], field[4 * h + 1]),
                  bd = _mm512_unpackhi_epi32(field[4 * h], field[4 * h + 1]),
                  eg = _mm512_unpacklo_epi32(field[4 * h + 2], field[4 * h + 3]),
                  fh = _mm512_unpackhi_epi32(field[4 * h + 2], field[4 * h + 3]);
    row[h][0] = _mm512_unpacklo_epi64(ac, eg);
    row[h][1] = _mm512_unpackhi_epi64(ac, eg);
    row[h][2] = _mm512_unpacklo_epi64(bd, fh);
    row[h][3] = _mm512_unpackhi_epi64(bd, fh);
  }
  // Whole cache lines: codes of block b below, its fields above.
  const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                odd = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512i low = _mm512_permutex2var_epi64(row[0][k], even, row[1][k]),
                  high = _mm512_permutex2var_epi64(row[0][k], odd, row[1][k]);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const int b = 4 * c + k;
      const __m256i code = b % 2 == 0 ? _mm512_castsi512_si256(codes[b / 2])
                                      : _mm512_extracti64x4_epi64(codes[b / 2], 1);
      const __m512i fields = c < 2 ? low : high;
      const __m256i mine =
          c % 2 == 0 ? _mm512_castsi512_si256(fields) : _mm512_extracti64x4_epi64(fields, 1);
      _mm512_store_si512(out + b, _mm512_inserti64x4(_mm512_castsi256_si512(code), mine, 1));
    }
  }
  // Blocks without a scale are few.
  const __mmask16 odd_ones = _mm512_cmpge_epi32_mask(most, _mm512_set1_epi32(kInfinityBits)) |
                             _mm512_cmplt_epi32_mask(most, _mm512_set1_epi32(kTinyBits));
  if (odd_ones != 0)
    for (int b = 0; b < 16; ++b)
      if (odd_ones >> b & 1) quantise(x + 32 * b, 32, out + b);
}
#endif

// n numbers → one block of 32 in `out`, the rest +0.
static inline void copy_f32(const float* x, int n, float* out) {
  store(out, load_first(x, n < 16 ? n : 16));
  store(out + 16, n > 16 ? load_first(x + 16, n - 16) : zero());
}
static inline void round_to_bf16(const float* x, int n, uint16_t* out) {
  store_low16(out, to_bf16(load_first(x, n < 16 ? n : 16)));
  store_low16(out + 16, to_bf16(n > 16 ? load_first(x + 16, n - 16) : zero()));
}

// n floats of a row → its area from column `column` (a multiple of 32) on.
static inline void prepare_row(ActivationKind kind, const float* x, int64_t n, std::byte* area,
                               int64_t column) {
  const auto present = [](int64_t left) { return left < kBlock ? static_cast<int>(left) : 32; };
  switch (kind) {
    case ActivationKind::F32: {
      auto* out = reinterpret_cast<float*>(area) + column;
      for (; n > 0; n -= kBlock, x += kBlock, out += kBlock) copy_f32(x, present(n), out);
      break;
    }
    case ActivationKind::BF16: {
      auto* out = reinterpret_cast<uint16_t*>(area) + column;
      for (; n > 0; n -= kBlock, x += kBlock, out += kBlock) round_to_bf16(x, present(n), out);
      break;
    }
    case ActivationKind::Int8: {
      auto* out = reinterpret_cast<ActivationBlock*>(area) + column / kBlock;
#ifdef HR_AVX512
      const int64_t whole = n / kBlock;
      int64_t done = whole / 16 * 16;
      for (int64_t b = 0; b < done; b += 16) quantise_16(x + b * kBlock, out + b);
      // The last sixteen may reach back over blocks that are done: those get the same bytes again,
      // and five blocks are ready sooner than one by one.
      if (done > 0 && whole - done > 4) {
        quantise_16(x + (whole - 16) * kBlock, out + whole - 16);
        done = whole;
      }
      n -= done * kBlock, x += done * kBlock, out += done;
#endif
      for (; n > 0; n -= kBlock, x += kBlock, ++out) quantise(x, present(n), out);
      break;
    }
  }
}

}  // namespace HR_ISA
