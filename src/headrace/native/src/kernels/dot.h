// The inner product of the matmul: code vectors of P panels × the int8 codes of M tokens, in int32.
//
// Exact on every level, so the order inside a block is free (docs/numerics.md, "Linear").
#pragma once

#include "kernels/weights.h"

namespace HR_ISA {

using headrace::ActivationBlock;

static inline i32x16 splat_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return splati(word);
}

#ifdef HR_AVX512

// sum[p][t] += Σ over code vectors J … Last − 1 of panel p · the same k of token t.
template <class W, int J, int Last, int M, int P>
[[gnu::always_inline]] static inline void add_codes(const typename W::Reader (&reader)[P],
                                                    const ActivationBlock* a, int64_t stride,
                                                    i32x16 (&sum)[P][M]) {
  i32x16 w[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) w[p] = reader[p].template codes<J>();
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) {
    const i32x16 x = splat_word(a[t * stride].codes + 4 * J);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sum[p][t] = dot4(sum[p][t], w[p], x);
  }
  if constexpr (J + 1 < Last) add_codes<W, J + 1, Last>(reader, a, stride, sum);
}

#else

// pairs[p][t] += the same, of 8-bit codes only their low (Shift 0) or high (Shift 4) nibbles.
template <class W, int J, int Last, int Shift, int M, int P>
[[gnu::always_inline]] static inline void add_to_pairs(const typename W::Reader (&reader)[P],
                                                       const ActivationBlock* a, int64_t stride,
                                                       i16x32 (&pairs)[P][M]) {
  i32x16 w[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    w[p] = reader[p].template codes<J>();
    if constexpr (W::kBits == 8) w[p] = Shift == 0 ? nibbles_low(w[p]) : nibbles_high(w[p]);
  }
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) {
    const i32x16 x = splat_word(a[t * stride].codes + 4 * J);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) pairs[p][t] = dot2(pairs[p][t], w[p], x);
  }
  if constexpr (J + 1 < Last) add_to_pairs<W, J + 1, Last, Shift>(reader, a, stride, pairs);
}

template <class W, int First, int Last, int Shift, int M, int P>
[[gnu::always_inline]] static inline void add_by_pairs(const typename W::Reader (&reader)[P],
                                                       const ActivationBlock* a, int64_t stride,
                                                       i32x16 (&sum)[P][M]) {
  i16x32 pairs[P][M];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) pairs[p][t] = zero_pairs();
  }
  add_to_pairs<W, First, Last, Shift>(reader, a, stride, pairs);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) sum[p][t] = add_pairs(sum[p][t], pairs[p][t], 1 << Shift);
  }
}

// sum[p][t] += Σ over code vectors First … Last − 1 of panel p · the same k of token t.
template <class W, int First, int Last, int M, int P>
[[gnu::always_inline]] static inline void add_codes(const typename W::Reader (&reader)[P],
                                                    const ActivationBlock* a, int64_t stride,
                                                    i32x16 (&sum)[P][M]) {
  if constexpr (W::kBits == 8) {
    add_by_pairs<W, First, Last, 0>(reader, a, stride, sum);
    add_by_pairs<W, First, Last, 4>(reader, a, stride, sum);
  } else {
    // As many vectors as a 16-bit sum holds: 2 · 127 · (2^bits − 1) each; 8 · 3810, 4 · 7874, 2 ·
    // 16002.
    constexpr int kTogether = W::kBits <= 4 ? 8 : W::kBits == 5 ? 4 : 2;
    constexpr int kNext = First + kTogether < Last ? First + kTogether : Last;
    add_by_pairs<W, First, kNext, 0>(reader, a, stride, sum);
    if constexpr (kNext < Last) add_codes<W, kNext, Last>(reader, a, stride, sum);
  }
}

#endif

}  // namespace HR_ISA
