// A row of float32 → a row of blocks in a quantised format (quantising at load).
//
// Lanes are groups: 16 groups of 16 or 32 numbers are transposed, and whatever is searched or
// summed runs in the lanes, so the result does not depend on the instruction set.
//   Q4_0, Q4_1, Q5_0, Q5_1, Q8_0   rounded to nearest, the bits of GGML's own quantisers
//   Q2_K … Q6_K                    per group the scale (and minimum) with the smallest squared
//   error
//                                  among candidates, each refitted to its codes by least squares;
//                                  then the scales of a super-block are rounded and the codes taken
//                                  anew. No importance weights.
// Reads 4·K bytes; the search of a K-quant costs some ten instructions per number and candidate.
#include <immintrin.h>

#include "kernels/ops.h"
#include "simd.h"

namespace HR_ISA {

using headrace::Format;

namespace {

constexpr int kLanes = 16;

// Number i of the groups: lane l is group l.
template <int N>
struct Groups {
  alignas(64) float x[N][kLanes];
  f32x16 operator[](int i) const { return load(x[i]); }
};
template <int N>
struct Codes {
  alignas(64) int32_t q[N][kLanes];
};
struct Lane {
  alignas(64) float at[kLanes];
};

// `count` groups of N consecutive numbers; the lanes beyond are zero.
template <int N>
void transpose(const float* x, int count, Groups<N>& out) {
  for (int i = 0; i < N; ++i)
    for (int l = 0; l < kLanes; ++l) out.x[i][l] = l < count ? x[l * N + i] : 0.0f;
}

uint16_t to_half(float x) {
  return static_cast<uint16_t>(
      _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
}
float from_half(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
uint8_t* put_half(uint8_t* out, float x) {
  const uint16_t h = to_half(x);
  __builtin_memcpy(out, &h, 2);
  return out + 2;
}

f32x16 magnitude(f32x16 x) { return from_bits(bits(x) & splati(0x7fffffff)); }

// 1 / scale; 0 where that is infinite (groups of zeros or of denormals).
f32x16 inverse(f32x16 scale) {
  const f32x16 inv = splat(1.0f) / scale;
  return select(less(magnitude(inv), splat(__builtin_inff())), inv, zero());
}
float inverse(float scale) {
  const float inv = 1.0f / scale;
  return __builtin_isfinite(inv) ? inv : 0.0f;
}
float round_even(float x) { return __builtin_rintf(x); }

// Of each group, the number with the largest magnitude (the first one).
template <int N>
f32x16 peak(const Groups<N>& x) {
  f32x16 best = x[0];
  for (int i = 1; i < N; ++i) best = select(less(magnitude(best), magnitude(x[i])), x[i], best);
  return best;
}

// ---- blocks of 32, rounded to nearest ---------------------------------------------------------

// Round half away from zero: |x| is cut into whole and fraction, both exact.
i32x16 round_away(f32x16 x) {
  const f32x16 size = magnitude(x), whole = to_float(truncate(size));
  const i32x16 rounded = truncate(whole) + truncate((size - whole) * splat(2.0f));
  return select(less(x, zero()), zeroi() - rounded, rounded);
}

void q8_0(const float* x, int count, uint8_t* out) {
  Groups<32> t;
  Codes<32> q;
  Lane scale;
  transpose(x, count, t);
  f32x16 most = magnitude(t[0]);
  for (int i = 1; i < 32; ++i) most = max(most, magnitude(t[i]));
  const f32x16 d = most / splat(127.0f), inv = inverse(d);
  store(scale.at, d);
  for (int i = 0; i < 32; ++i) storei(q.q[i], round_away(t[i] * inv));
  for (int l = 0; l < count; ++l) {
    out = put_half(out, scale.at[l]);
    for (int i = 0; i < 32; ++i) *out++ = static_cast<uint8_t>(q.q[i][l]);
  }
}

template <bool Affine, int Bits>
void legacy(const float* x, int count, uint8_t* out) {
  constexpr int kMost = (1 << Bits) - 1, kHalf = 1 << (Bits - 1);
  Groups<32> t;
  Codes<32> q;
  Lane scale, minimum;
  transpose(x, count, t);
  f32x16 from = zero(), d, add = splat(kHalf + 0.5f);
  if constexpr (Affine) {
    f32x16 most = t[0];
    from = t[0];
    for (int i = 1; i < 32; ++i) {
      most = max(most, t[i]);
      from = min(from, t[i]);
    }
    d = (most - from) / splat(static_cast<float>(kMost));
    add = splat(0.5f);
  } else {
    d = peak(t) / splat(static_cast<float>(-kHalf));
  }
  const f32x16 inv = inverse(d);
  for (int i = 0; i < 32; ++i)
    storei(q.q[i], mini(truncate((t[i] - from) * inv + add), splati(kMost)));
  store(scale.at, d);
  store(minimum.at, from);
  for (int l = 0; l < count; ++l) {
    out = put_half(out, scale.at[l]);
    if constexpr (Affine) out = put_half(out, minimum.at[l]);
    if constexpr (Bits == 5) {
      uint32_t fifth = 0;
      for (int i = 0; i < 32; ++i) fifth |= static_cast<uint32_t>(q.q[i][l] >> 4) << i;
      __builtin_memcpy(out, &fifth, 4);
      out += 4;
    }
    for (int i = 0; i < 16; ++i)
      *out++ = static_cast<uint8_t>((q.q[i][l] & 15) | (q.q[i + 16][l] & 15) << 4);
  }
}

// ---- search -----------------------------------------------------------------------------------

// Codes 0 … most of x ≈ scale · code − minimum, both ≥ 0. The candidates stretch the range by
// (most + first + step · i) / most; each is refitted to its codes.
template <int N>
void fit_affine(const Groups<N>& x, float most, float first, float step, int candidates,
                Lane& scale, Lane& minimum) {
  f32x16 low = zero(), high = x[0], sx = zero(), sxx = zero();
  for (int i = 0; i < N; ++i) {
    low = min(low, x[i]);
    high = max(high, x[i]);
    sx = sx + x[i];
    sxx = fma(x[i], x[i], sxx);
  }
  const f32x16 per_range = inverse(high - low), n = splat(N);
  f32x16 best = splat(__builtin_inff()), best_scale = zero(), best_low = low;
  for (int c = 0; c < candidates; ++c) {
    const f32x16 inv = splat(most + first + step * static_cast<float>(c)) * per_range;
    f32x16 sq = zero(), sqq = zero(), sxq = zero();
    for (int i = 0; i < N; ++i) {
      const f32x16 q = min(to_float(to_int((x[i] - low) * inv)), splat(most));
      sq = sq + q;
      sqq = fma(q, q, sqq);
      sxq = fma(x[i], q, sxq);
    }
    const f32x16 det = n * sqq - sq * sq;
    // Codes that are all equal leave the two unknowns open: then, and where the minimum would fall
    // below 0, it is 0.
    const mask16 solvable = less(zero(), det);
    const f32x16 free_low = select(solvable, (sqq * sx - sq * sxq) / det, zero());
    const mask16 is_free = less(free_low, zero());
    const f32x16 s = select(is_free, (n * sxq - sx * sq) / det, sxq / sqq);
    const f32x16 b = select(is_free, free_low, zero());
    // Σ (x − s·q − b)²
    const f32x16 two = splat(2.0f);
    f32x16 error = sxx - two * (s * sxq + b * sx);
    error = error + s * s * sqq + two * (s * b * sq) + n * (b * b);
    const mask16 better = less(error, best);  // false for NaN: codes all equal
    best = select(better, error, best);
    best_scale = select(better, s, best_scale);
    best_low = select(better, b, best_low);
  }
  store(scale.at, max(best_scale, zero()));
  store(minimum.at, zero() - min(best_low, zero()));
}

// Codes −half … half − 1 of x ≈ scale · code; the scale has any sign. Candidates map the peak to
// −(half + 0.1 · c) for c = −9 … 9.
template <int N>
void fit_symmetric(const Groups<N>& x, float half, Lane& scale) {
  const f32x16 per_peak = inverse(peak(x));
  f32x16 best = zero(), best_scale = zero();
  for (int c = -9; c <= 9; ++c) {
    const f32x16 inv = splat(-(half + 0.1f * static_cast<float>(c))) * per_peak;
    f32x16 sqq = zero(), sxq = zero();
    for (int i = 0; i < N; ++i) {
      const f32x16 q = max(min(to_float(to_int(x[i] * inv)), splat(half - 1.0f)), splat(-half));
      sqq = fma(q, q, sqq);
      sxq = fma(x[i], q, sxq);
    }
    const f32x16 s = sxq / sqq, gain = s * sxq;  // what it takes off Σ x²
    const mask16 better = less(best, gain);
    best = select(better, gain, best);
    best_scale = select(better, s, best_scale);
  }
  store(scale.at, best_scale);
}

// Codes round((x + minimum) / step) within 0 … most (plus `offset` before the clamp).
template <int N>
void take_codes(const Groups<N>& x, const Lane& step, const Lane& minimum, float offset, float most,
                Codes<N>& out) {
  Lane inv;
  for (int l = 0; l < kLanes; ++l) inv.at[l] = inverse(step.at[l]);
  const f32x16 factor = load(inv.at), add = load(minimum.at);
  for (int i = 0; i < N; ++i) {
    const f32x16 q = to_float(to_int((x[i] + add) * factor)) + splat(offset);
    storei(out.q[i], to_int(max(min(q, splat(most)), zero())));
  }
}

float largest(const float* x, int count) {  // by magnitude, with its sign; the first one
  float best = 0;
  for (int i = 0; i < count; ++i)
    if (__builtin_fabsf(x[i]) > __builtin_fabsf(best)) best = x[i];
  return best;
}
int clamp(float x, int low, int high) {
  const int i = static_cast<int>(round_even(x));
  return i < low ? low : i > high ? high : i;
}

// ---- super-blocks of 256 ----------------------------------------------------------------------

// Q4_K, Q5_K: one or two super-blocks of 8 groups of 32.
template <bool Fifth>
void affine_k(const float* x, int super_blocks, uint8_t* out) {
  constexpr int kMost = Fifth ? 31 : 15;
  Groups<32> t;
  Codes<32> codes;
  Lane scale, minimum, step{}, low{};
  transpose(x, 8 * super_blocks, t);
  fit_affine(t, kMost, -1.0f, 0.1f, 21, scale, minimum);
  constexpr int kBytes = Fifth ? 176 : 144;
  for (int s = 0; s < super_blocks; ++s) {
    uint8_t* head = out + s * kBytes;
    const float d = largest(scale.at + 8 * s, 8) / 63, m = largest(minimum.at + 8 * s, 8) / 63;
    uint8_t* packed = put_half(put_half(head, d), m);
    const float per_d = inverse(d), per_m = inverse(m);
    int sc[8], mn[8];
    for (int j = 0; j < 8; ++j) {
      const int l = 8 * s + j;
      sc[j] = clamp(scale.at[l] * per_d, 0, 63);
      mn[j] = clamp(minimum.at[l] * per_m, 0, 63);
      step.at[l] = from_half(to_half(d)) * static_cast<float>(sc[j]);
      low.at[l] = from_half(to_half(m)) * static_cast<float>(mn[j]);
    }
    for (int j = 0; j < 4; ++j) {
      packed[j] = static_cast<uint8_t>(sc[j] | (sc[4 + j] >> 4) << 6);
      packed[4 + j] = static_cast<uint8_t>(mn[j] | (mn[4 + j] >> 4) << 6);
      packed[8 + j] = static_cast<uint8_t>((sc[4 + j] & 15) | (mn[4 + j] & 15) << 4);
    }
  }
  take_codes(t, step, low, 0, kMost, codes);
  for (int s = 0; s < super_blocks; ++s) {
    uint8_t* body = out + s * kBytes + 16;
    if constexpr (Fifth) {
      for (int i = 0; i < 32; ++i) {
        int byte = 0;
        for (int j = 0; j < 8; ++j) byte |= (codes.q[i][8 * s + j] >> 4) << j;
        *body++ = static_cast<uint8_t>(byte);
      }
    }
    for (int j = 0; j < 8; j += 2)
      for (int i = 0; i < 32; ++i)
        *body++ = static_cast<uint8_t>((codes.q[i][8 * s + j] & 15) |
                                       (codes.q[i][8 * s + j + 1] & 15) << 4);
  }
}

// The low two bits of 256 codes, as Q2_K and Q3_K keep them: code k is codes.q[k % 16][k / 16].
void put_two_bits(const Codes<16>& codes, uint8_t* out) {
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      int byte = 0;
      for (int j = 0; j < 4; ++j) {
        const int k = 128 * half + 32 * j + i;
        byte |= (codes.q[k % 16][k / 16] & 3) << (2 * j);
      }
      *out++ = static_cast<uint8_t>(byte);
    }
}

void q2_k(const float* x, uint8_t* out) {
  Groups<16> t;
  Codes<16> codes;
  Lane scale, minimum, step, low;
  transpose(x, 16, t);
  fit_affine(t, 3, -0.7f, 0.1f, 16, scale, minimum);
  const float d = largest(scale.at, 16) / 15, m = largest(minimum.at, 16) / 15;
  const float per_d = inverse(d), per_m = inverse(m);
  for (int l = 0; l < 16; ++l) {
    const int sc = clamp(scale.at[l] * per_d, 0, 15), mn = clamp(minimum.at[l] * per_m, 0, 15);
    step.at[l] = from_half(to_half(d)) * static_cast<float>(sc);
    low.at[l] = from_half(to_half(m)) * static_cast<float>(mn);
    out[l] = static_cast<uint8_t>(sc | mn << 4);
  }
  take_codes(t, step, low, 0, 3, codes);
  put_two_bits(codes, out + 16);
  put_half(put_half(out + 80, d), m);
}

// Symmetric groups of 16: rounded scales −steps … steps − 1 into `sc`, codes 0 … 2·half − 1.
// Returns the super-block's scale.
float symmetric_k(const float* x, int half, int steps, int (&sc)[16], Codes<16>& codes) {
  Groups<16> t;
  Lane scale, step, none{};
  transpose(x, 16, t);
  fit_symmetric(t, static_cast<float>(half), scale);
  const float d = largest(scale.at, 16) / static_cast<float>(-steps), per_d = inverse(d);
  for (int l = 0; l < 16; ++l) {
    sc[l] = clamp(scale.at[l] * per_d, -steps, steps - 1);
    step.at[l] = from_half(to_half(d)) * static_cast<float>(sc[l]);
  }
  take_codes(t, step, none, static_cast<float>(half), static_cast<float>(2 * half - 1), codes);
  return d;
}

void q3_k(const float* x, uint8_t* out) {
  Codes<16> codes;
  int sc[16];
  const float d = symmetric_k(x, 4, 32, sc, codes);
  for (int i = 0; i < 32; ++i) {
    int byte = 0;
    for (int b = 0; b < 8; ++b) {
      const int k = 32 * b + i;
      byte |= (codes.q[k % 16][k / 16] >> 2) << b;
    }
    out[i] = static_cast<uint8_t>(byte);
  }
  put_two_bits(codes, out + 32);
  uint8_t* packed = out + 96;
  for (int i = 0; i < 8; ++i)
    packed[i] = static_cast<uint8_t>(((sc[i] + 32) & 15) | ((sc[8 + i] + 32) & 15) << 4);
  for (int i = 0; i < 4; ++i) {
    int byte = 0;
    for (int j = 0; j < 4; ++j) byte |= ((sc[4 * j + i] + 32) >> 4) << (2 * j);
    packed[8 + i] = static_cast<uint8_t>(byte);
  }
  put_half(out + 108, d);
}

void q6_k(const float* x, uint8_t* out) {
  Codes<16> codes;
  int sc[16];
  const float d = symmetric_k(x, 32, 128, sc, codes);
  auto code = [&](int k) { return codes.q[k % 16][k / 16]; };
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; ++i) {
      const int k = 128 * half + i;
      out[64 * half + i] = static_cast<uint8_t>((code(k) & 15) | (code(k + 64) & 15) << 4);
    }
    for (int i = 0; i < 32; ++i) {
      int byte = 0;
      for (int j = 0; j < 4; ++j) byte |= (code(128 * half + 32 * j + i) >> 4) << (2 * j);
      out[128 + 32 * half + i] = static_cast<uint8_t>(byte);
    }
  }
  for (int l = 0; l < 16; ++l) out[192 + l] = static_cast<uint8_t>(sc[l]);
  put_half(out + 208, d);
}

using Blocks = void (*)(const float* x, int count, uint8_t* out);

// `together` units of `numbers` numbers and `bytes` bytes per call.
void each(const float* x, int64_t k, uint8_t* out, int numbers, int bytes, int together,
          Blocks blocks) {
  for (int64_t left = k / numbers; left > 0; left -= together) {
    const int count = left < together ? static_cast<int>(left) : together;
    blocks(x, count, out);
    x += static_cast<int64_t>(count) * numbers;
    out += static_cast<int64_t>(count) * bytes;
  }
}

}  // namespace

bool quantize_row(Format to, const float* x, int64_t k, uint8_t* out) {
  switch (to) {
    case Format::Q4_0:
      return each(x, k, out, 32, 18, kLanes, legacy<false, 4>), true;
    case Format::Q4_1:
      return each(x, k, out, 32, 20, kLanes, legacy<true, 4>), true;
    case Format::Q5_0:
      return each(x, k, out, 32, 22, kLanes, legacy<false, 5>), true;
    case Format::Q5_1:
      return each(x, k, out, 32, 24, kLanes, legacy<true, 5>), true;
    case Format::Q8_0:
      return each(x, k, out, 32, 34, kLanes, q8_0), true;
    case Format::Q4_K:
      return each(x, k, out, 256, 144, 2, affine_k<false>), true;
    case Format::Q5_K:
      return each(x, k, out, 256, 176, 2, affine_k<true>), true;
    case Format::Q2_K:
      return each(x, k, out, 256, 84, 1, [](auto in, int, auto to) { q2_k(in, to); }), true;
    case Format::Q3_K:
      return each(x, k, out, 256, 110, 1, [](auto in, int, auto to) { q3_k(in, to); }), true;
    case Format::Q6_K:
      return each(x, k, out, 256, 210, 1, [](auto in, int, auto to) { q6_k(in, to); }), true;
    default:
      return false;
  }
}

}  // namespace HR_ISA
