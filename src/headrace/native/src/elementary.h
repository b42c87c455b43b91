// exp and tanh on sixteen lanes, with equal bits on every instruction set.
//
// Only operations of simd.h are used, in one fixed order, so a level cannot change a bit. Subnormal
// results are flushed to zero by the kernel threads' FTZ. Largest errors against float64 over
// samples of all float32 (tests/native/test_elementwise.py): exp 1.04 ulp, tanh 1.32 ulp.
#pragma once

#include "simd.h"

namespace HR_ISA {

// x = n·ln 2 + r with |r| ≤ ln 2 / 2 (a hair more at the rounding border) → e^r; n by reference.
// e^r = 1 + r + r²·q(r), q of degree 4, minimax on the interval (relative error of the whole 3e-9).
static inline f32x16 exp_reduced(f32x16 x, i32x16& n) {
  n = to_int(x * splat(1.44269504f));
  f32x16 nf = to_float(n);
  // ln 2 in two parts; the high one has 12 trailing zero bits, so n·high is exact.
  f32x16 r = fma(nf, splat(-0x1.62ep-1f), x);
  r = fma(nf, splat(-0x1.0bfbe8p-15f), r);
  f32x16 q = splat(0.00139504881f);
  q = fma(q, r, splat(0.00836888794f));
  q = fma(q, r, splat(0.041666206f));
  q = fma(q, r, splat(0.166665182f));
  q = fma(q, r, splat(0.5f));
  return fma(r * r, q, r) + splat(1.0f);
}

static inline f32x16 power_of_two(i32x16 n) {  // 2^n, −127 (gives 0) ≤ n ≤ 128 (gives infinity)
  return from_bits(shl<23>(n + splati(127)));
}

// e^x. exp(±0) = 1 exactly, exp(−inf) = 0, exp(inf) = inf, NaN stays NaN; subnormal results are 0.
static inline f32x16 exp(f32x16 x) {
  // Beyond these bounds the result is 0 or infinity anyway. x is the second operand: NaN passes.
  x = min(splat(89.0f), max(splat(-104.0f), x));
  i32x16 n;
  f32x16 p = exp_reduced(x, n);
  // 2^n in two factors, since n reaches 128 (with p < 1) and −150.
  i32x16 half = shr<1>(n + splati(256)) - splati(128);
  return (p * power_of_two(half)) * power_of_two(n - half);
}

// The same bits for x ≤ 0 (or NaN), with fewer operations: n ≤ 0, and n ≤ −127 is flushed to 0.
static inline f32x16 exp_nonpositive(f32x16 x) {
  x = max(splat(-88.0f), x);  // e^−88 is below the smallest normal number
  i32x16 n;
  f32x16 p = exp_reduced(x, n);
  return p * power_of_two(n);
}

// The same for n vectors at once, step by step: the chain of one is 45 cycles long, and a core that
// must find the next one behind it runs out of scheduler entries.
template <int n>
[[gnu::always_inline]] static inline void exp_nonpositive(f32x16 (&x)[n]) {
  f32x16 r[n], q[n];
  i32x16 k[n];
#define HR_EACH _Pragma("GCC unroll 8") for (int i = 0; i < n; ++i)
  HR_EACH x[i] = max(splat(-88.0f), x[i]);
  HR_EACH k[i] = to_int(x[i] * splat(1.44269504f));
  HR_EACH {
    const f32x16 whole = to_float(k[i]);
    r[i] = fma(whole, splat(-0x1.62ep-1f), x[i]);
    r[i] = fma(whole, splat(-0x1.0bfbe8p-15f), r[i]);
  }
  HR_EACH q[i] = fma(splat(0.00139504881f), r[i], splat(0.00836888794f));
  HR_EACH q[i] = fma(q[i], r[i], splat(0.041666206f));
  HR_EACH q[i] = fma(q[i], r[i], splat(0.166665182f));
  HR_EACH q[i] = fma(q[i], r[i], splat(0.5f));
  HR_EACH x[i] = (fma(r[i] * r[i], q[i], r[i]) + splat(1.0f)) * power_of_two(k[i]);
#undef HR_EACH
}

// tanh x, odd; |x| < 0.625: x + x³·P(x²), else 1 − 2 / (e^2|x| + 1), which reaches 1 by itself.
static inline f32x16 tanh(f32x16 x) {
  const i32x16 sign_bit = splati(static_cast<int32_t>(0x80000000u));
  i32x16 sign = bits(x) & sign_bit;
  f32x16 a = from_bits(bits(x) & splati(0x7fffffff));
  f32x16 z = a * a;
  f32x16 p = splat(-0.00571704516f);
  p = fma(p, z, splat(0.020650588f));
  p = fma(p, z, splat(-0.0537434965f));
  p = fma(p, z, splat(0.133314908f));
  p = fma(p, z, splat(-0.333332837f));
  f32x16 small = fma(a * z, p, a);
  f32x16 large = splat(1.0f) - splat(2.0f) / (exp(a + a) + splat(1.0f));
  f32x16 y = select(less(a, splat(0.625f)), small, large);
  return from_bits(bits(y) | sign);
}

}  // namespace HR_ISA
