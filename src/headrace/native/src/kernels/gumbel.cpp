// The draw: argmax of z + noise over a whole row or a list, with noise made for most ids and its
// two logarithms for a handful.
//
// Bounds, all above what would be computed, skip the rest:
//   a block whose largest z + 22.9 cannot win needs no random words;
//   an id needs no logarithm when z + B(word) cannot win, where
//   −ln(−ln u) ≤ −ln(1 − u) ≤ B = ln 2 · (31 − log₂ of the word's complement, rounded down).
// The test is in float32 with room for its rounding; what passes it is computed as defined.
#include "kernels/gumbel.h"

#include "simd.h"

namespace HR_ISA {

using namespace headrace::sampling;

namespace {

constexpr int kCounters = 16;  // made together: the words of 64 ids
constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;

// Philox on vectors of 64-bit lanes, a counter in each: of every lane only the low half counts.
#ifdef HR_AVX512
using Lanes = __m512i;
constexpr int kWidth = 8;
inline Lanes spread(const uint32_t* c) {  // in an order that pairs() undoes
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i c32 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(c));
  return _mm512_permutexvar_epi64(order, _mm512_cvtepu32_epi64(c32));
}
inline Lanes all(uint32_t x) { return _mm512_set1_epi64(x); }
inline Lanes product(Lanes a, Lanes b) { return _mm512_mul_epu32(a, b); }
inline Lanes high(Lanes a) { return _mm512_srli_epi64(a, 32); }
inline Lanes xor3(Lanes a, Lanes b, Lanes c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
inline Lanes pair(Lanes low, Lanes up) {
  return _mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(up, 32));
}
inline void store_words(uint32_t* out, Lanes w01, Lanes w23) {
  _mm512_storeu_si512(out, _mm512_unpacklo_epi64(w01, w23));
  _mm512_storeu_si512(out + 16, _mm512_unpackhi_epi64(w01, w23));
}
#else
using Lanes = __m256i;
constexpr int kWidth = 4;
inline Lanes spread(const uint32_t* c) {
  const __m128i c32 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(c));
  return _mm256_permute4x64_epi64(_mm256_cvtepu32_epi64(c32), 0xd8);  // 0 2 1 3
}
inline Lanes all(uint32_t x) { return _mm256_set1_epi64x(x); }
inline Lanes product(Lanes a, Lanes b) { return _mm256_mul_epu32(a, b); }
inline Lanes high(Lanes a) { return _mm256_srli_epi64(a, 32); }
inline Lanes xor3(Lanes a, Lanes b, Lanes c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
inline Lanes pair(Lanes low, Lanes up) {
  return _mm256_blend_epi32(low, _mm256_slli_epi64(up, 32), 0xaa);
}
inline void store_words(uint32_t* out, Lanes w01, Lanes w23) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_unpacklo_epi64(w01, w23));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), _mm256_unpackhi_epi64(w01, w23));
}
#endif

// The four words of each counter (first[j], position, sample index, purpose), j = 0 … 15.
void make_words(const Noise& noise, const uint32_t first[kCounters],
                uint32_t words[4 * kCounters]) {
  constexpr int kSets = kCounters / kWidth;
  const Lanes m0 = all(kMultiplier0), m1 = all(kMultiplier1);
  Lanes c0[kSets], c1[kSets], c2[kSets], c3[kSets];
  for (int s = 0; s < kSets; ++s) {
    c0[s] = spread(first + s * kWidth);
    c1[s] = all(noise.position);
    c2[s] = all(noise.sample_index);
    c3[s] = all(noise.purpose);
  }
  uint32_t k0 = static_cast<uint32_t>(noise.seed), k1 = static_cast<uint32_t>(noise.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Lanes key0 = all(k0), key1 = all(k1);
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) {
      const Lanes p0 = product(c0[s], m0), p1 = product(c2[s], m1);
      c0[s] = xor3(high(p1), c1[s], key0);
      c1[s] = p1;
      c2[s] = xor3(high(p0), c3[s], key1);
      c3[s] = p0;
    }
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  for (int s = 0; s < kSets; ++s)
    store_words(words + 4 * kWidth * s, pair(c0[s], c1[s]), pair(c2[s], c3[s]));
}

// At or above gumbel(word) − 2·10⁻⁵. The float bits of v, divided by 2²³, minus 127, are at or
// below log₂ v.
constexpr float kLn2 = 0.69314718f;
inline f32x16 noise_bound(i32x16 words) {
  const i32x16 v = shr<1>(splati(-1) - words) & splati(~0x7f);  // 24 bits: exact as a float
  return splat((31 + 127) * kLn2) - to_float(bits(to_float(v))) * splat(kLn2 / 8388608.0f);
}

// What z + bound must reach, in float32, to have a chance against `best`. A winner's z lies within
// 23 of best, so the room for rounding covers float(z), the bound and the sum.
inline float bar_of(const Drawn& best) {
  const double size = best.value < 0 ? -best.value : best.value;
  if (!(size < 1e30)) return -__builtin_inff();
  return static_cast<float>(best.value - (1e-4 + (size + 23) * 0x1p-20));
}

inline bool consider(Drawn& best, int64_t id, double value) {
  if (!(value > best.value || (value == best.value && id < best.id))) return false;
  best = {id, value};
  return true;
}

}  // namespace

Drawn draw_row(const float* x, int64_t n, const float* block_max, double t, const Noise& noise,
               Drawn best) {
  constexpr int64_t kGroup = 4 * kCounters;
  static_assert(kBlock % kGroup == 0);
  const float inverse = static_cast<float>(1 / t);
  float bar = bar_of(best);
  uint32_t first[kCounters], words[kGroup];
  for (int64_t group = 0; group < n; group += kGroup) {
    if (block_max[group / kBlock] * inverse + 22.9f < bar) continue;
    for (int j = 0; j < kCounters; ++j)
      first[j] = static_cast<uint32_t>(group >> 2) + static_cast<uint32_t>(j);
    make_words(noise, first, words);
    const int64_t count = n - group < kGroup ? n - group : kGroup;
    for (int64_t i = 0; i < count; i += 16) {
      const int64_t left = count - i;
      const f32x16 z =
          left >= 16 ? load(x + group + i) : load_first(x + group + i, static_cast<int>(left));
      const f32x16 reach = z * splat(inverse) + noise_bound(loadi(words + i));
      uint32_t hits =
          ~lane_bits(less(reach, splat(bar))) & (left >= 16 ? 0xffffu : (1u << left) - 1);
      for (; hits != 0; hits &= hits - 1) {
        const int64_t at = i + __builtin_ctz(hits);
        const double value = static_cast<double>(x[group + at]) / t + gumbel(words[at]);
        if (consider(best, group + at, value)) bar = bar_of(best);
      }
    }
  }
  return best;
}

Drawn draw_list(const Candidate* list, int64_t n, const Noise& noise, Drawn best) {
  uint32_t first[kCounters] = {}, words[4 * kCounters], own[kCounters] = {};
  float z[kCounters] = {};
  for (int64_t group = 0; group < n; group += kCounters) {
    const int count = static_cast<int>(n - group < kCounters ? n - group : kCounters);
    bool some = false;
    for (int j = 0; j < count; ++j) {
      const Candidate& c = list[group + j];
      first[j] = static_cast<uint32_t>(c.id) >> 2;
      z[j] = static_cast<float>(c.logit);
      some |= c.logit + kMaxGumbel >= best.value;
    }
    if (!some) continue;
    make_words(noise, first, words);
    for (int j = 0; j < count; ++j) own[j] = words[4 * j + (list[group + j].id & 3)];
    const f32x16 reach = load(z) + noise_bound(loadi(own));
    uint32_t hits = ~lane_bits(less(reach, splat(bar_of(best)))) & ((1u << count) - 1);
    for (; hits != 0; hits &= hits - 1) {
      const int j = __builtin_ctz(hits);
      consider(best, list[group + j].id, list[group + j].logit + gumbel(own[j]));
    }
  }
  return best;
}

}  // namespace HR_ISA
