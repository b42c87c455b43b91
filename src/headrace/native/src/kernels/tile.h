// One tile of a matmul: P panels of 16 output rows × M tokens, over the whole of K.
//
// The arithmetic of one (output row, token) is that of docs/numerics.md, "Linear", and is the same
// for every P and M: sums run in the lanes, block after block. A block of weights is unpacked once
// and used for all M tokens. Traffic: P · panel_bytes + M · activation_area_bytes.
#pragma once

#include "kernels/dot.h"

namespace HR_ISA {

// What a tile asks memory for meanwhile: `step` bytes per block and panel, from `distance` behind
// the panel's start on.
struct Ahead {
  int64_t distance, step;
};

template <int64_t BlockBytes>
[[gnu::always_inline]] static inline void prefetch(const uint8_t* panel, const Ahead& ahead,
                                                   int64_t block) {
  const auto* at = reinterpret_cast<const char*>(panel) + ahead.distance + block * ahead.step;
  if (ahead.step == BlockBytes) {
#pragma GCC unroll 32
    for (int64_t line = 0; line < BlockBytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
  } else {
    for (int64_t line = 0; line < ahead.step; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
  }
}

// ---- int8 activations -------------------------------------------------------------------------

// Where an int32 sum starts: minus the offset times the sum of the activation codes.
template <class W, int Half>
[[gnu::always_inline]] static inline i32x16 start(const ActivationBlock& a) {
  if constexpr (W::kOffset == 32)
    return splati(a.minus32[Half]);
  else if constexpr (W::kOffset == 4)
    return splati(a.minus32[Half] / 8);  // exact
  else if constexpr (W::kOffset == 8)
    return splati(a.minus8);
  else if constexpr (W::kOffset == 16)
    return splati(a.minus16);
  else if constexpr (W::kOffset == 128)
    return splati(a.minus128);
  else
    return zeroi();
}
template <class W, int Half, int M, int P>
[[gnu::always_inline]] static inline void start_sums(const ActivationBlock* a, int64_t stride,
                                                     i32x16 (&sum)[P][M]) {
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) {
    const i32x16 from = start<W, Half>(a[t * stride]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sum[p][t] = from;
  }
}

// sum[p][t] = the exact int32 of one block.
template <class W, int M, int P>
[[gnu::always_inline]] static inline void sum_block(const typename W::Reader (&reader)[P],
                                                    const ActivationBlock* a, int64_t stride,
                                                    i32x16 (&sum)[P][M]) {
  start_sums<W, 0>(a, stride, sum);
  add_codes<W, 0, 4>(reader, a, stride, sum);
  i32x16 first[P][M];
  if constexpr (W::kTwoScales) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const i32x16 scale = reader[p].template half_scale<0>();
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) first[p][t] = muli(sum[p][t], scale);
    }
    start_sums<W, 1>(a, stride, sum);
  }
  add_codes<W, 4, 8>(reader, a, stride, sum);
  if constexpr (W::kTwoScales) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const i32x16 scale = reader[p].template half_scale<1>();
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) sum[p][t] = first[p][t] + muli(sum[p][t], scale);
    }
  }
}

// Tokens whose int32 sums are held at once.
#ifdef HR_AVX512
template <int M, int P>
constexpr int kTogether = P == 2 ? (M <= 6 ? 6 : 4) : 8;
#else
template <int M, int P>
constexpr int kTogether = M;
#endif

// One block for tokens First … First + Count − 1 of a tile: their accumulators go on.
template <class W, int First, int Count, int M, int P>
[[gnu::always_inline]] static inline void add_block(const typename W::Reader (&reader)[P],
                                                    const ActivationBlock* a, int64_t stride,
                                                    f32x16 (&acc)[P][M]) {
  a += First * stride;
  i32x16 sum[P][Count];
  sum_block<W>(reader, a, stride, sum);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const f32x16 scale = reader[p].scale();
#pragma GCC unroll 16
    for (int t = 0; t < Count; ++t)
      acc[p][First + t] =
          fma(to_float(sum[p][t]), scale * splat(a[t * stride].scale), acc[p][First + t]);
    if constexpr (W::kHasMin) {
      const f32x16 minimum = reader[p].minimum();
#pragma GCC unroll 16
      for (int t = 0; t < Count; ++t)
        acc[p][First + t] = fma(minimum, splat(a[t * stride].sum), acc[p][First + t]);
    }
    if constexpr (W::kTwoMinima) {
      const f32x16 minimum = reader[p].minimum();
      const i32x16 minima = reader[p].minima();
#pragma GCC unroll 16
      for (int t = 0; t < Count; ++t) {
        const i32x16 j = dot2_words(zeroi(), minima, splat_word(a[t * stride].sums));
        acc[p][First + t] =
            fma(to_float(j), minimum * splat(a[t * stride].scale), acc[p][First + t]);
      }
    }
  }
}

// The same for all M tokens, Together at a time: more sums than that do not fit in registers next
// to the accumulators. Codes are unpacked anew for each time.
template <class W, int Together, int First, int M, int P>
[[gnu::always_inline]] static inline void add_blocks(typename W::Reader (&reader)[P],
                                                     const ActivationBlock* a, int64_t stride,
                                                     f32x16 (&acc)[P][M]) {
  constexpr int kTimes = (M - First + Together - 1) / Together;
  constexpr int kCount = (M - First + kTimes - 1) / kTimes;
  add_block<W, First, kCount>(reader, a, stride, acc);
  if constexpr (First + kCount < M) {
    // Without this the compiler keeps the codes of the first time, in memory.
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) asm("" : "+r"(reader[p].at));
    add_blocks<W, Together, First + kCount>(reader, a, stride, acc);
  }
}

template <class W, int M, int P>
[[gnu::always_inline]] static inline void tile_bytes(const uint8_t* panel, int64_t panel_step,
                                                     const std::byte* activations,
                                                     int64_t area_bytes, int64_t blocks,
                                                     const Ahead& ahead, f32x16 (&acc)[P][M]) {
  typename W::Reader reader[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) reader[p].open(panel + p * panel_step);
  const auto* a = reinterpret_cast<const ActivationBlock*>(activations);
  const int64_t stride = area_bytes / static_cast<int64_t>(sizeof(ActivationBlock));
  for (int64_t b = 0; b < blocks; ++b, ++a) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      prefetch<W::kBlockBytes>(panel + p * panel_step, ahead, b);
      reader[p].next(b);
    }
    add_blocks<W, kTogether<M, P>, 0>(reader, a, stride, acc);
  }
}

// ---- float activations ------------------------------------------------------------------------

template <class W, int M, int P>
[[gnu::always_inline]] static inline void tile_floats(const uint8_t* panel, int64_t panel_step,
                                                      const std::byte* activations,
                                                      int64_t area_bytes, int64_t blocks,
                                                      const Ahead& ahead, f32x16 (&acc)[P][M]) {
  constexpr bool kPairs = W::kDot == Dot::Pair;
  constexpr int kSteps = kPairs ? 16 : 32;  // one 4-byte word of activations each
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* block = panel + b * W::kBlockBytes;
    const std::byte* a = activations + b * kSteps * 4;
    f32x16 part[P][M];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      prefetch<W::kBlockBytes>(panel + p * panel_step, ahead, b);
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) part[p][t] = zero();
    }
#pragma GCC unroll 2
    for (int k = 0; k < kSteps; ++k) {
      i32x16 w[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) w[p] = W::weight(block + p * panel_step, k);
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) {
        const i32x16 x = splat_word(a + t * area_bytes + k * 4);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          part[p][t] = kPairs ? dot_bf16(part[p][t], w[p], x)
                              : fma(from_bits(w[p]), from_bits(x), part[p][t]);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) acc[p][t] = acc[p][t] + part[p][t];
    }
  }
}

// ---- a whole tile -----------------------------------------------------------------------------

struct Problem {  // what all tiles of a matmul share
  const uint8_t* weights;
  int64_t panel_bytes, n, blocks;
  const std::byte* activations;
  int64_t area_bytes;
  const float* bias;
  float* out;
  int64_t out_stride;
};

// The end of a tile: out = acc (+ bias), of panels first, first + step, … × tokens token … + M − 1.
template <int M, int P>
[[gnu::always_inline]] static inline void finish(const Problem& problem, int64_t first,
                                                 int64_t step, int64_t token,
                                                 const f32x16 (&acc)[P][M]) {
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const int64_t row = (first + p * step) * headrace::kPanelRows;
    const int64_t left = problem.n - row;
    const int rows = left < headrace::kPanelRows ? static_cast<int>(left) : 16;
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) {
      f32x16 y = acc[p][t];
      if (problem.bias != nullptr) y = y + load_first(problem.bias + row, rows);
      store_first(problem.out + (token + t) * problem.out_stride + row, y, rows);
    }
  }
}

// Panels first, first + step, … (P of them; step 0: the same one) × tokens token … token + M − 1.
template <class W, int M, int P>
static void tile(const Problem& problem, int64_t first, int64_t step, int64_t token,
                 const Ahead& ahead) {
  f32x16 acc[P][M];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) acc[p][t] = zero();
  }
  const uint8_t* panel = problem.weights + first * problem.panel_bytes;
  const std::byte* a = problem.activations + token * problem.area_bytes;
  if constexpr (W::kDot == Dot::Bytes)
    tile_bytes<W, M, P>(panel, step * problem.panel_bytes, a, problem.area_bytes, problem.blocks,
                        ahead, acc);
  else
    tile_floats<W, M, P>(panel, step * problem.panel_bytes, a, problem.area_bytes, problem.blocks,
                         ahead, acc);
  finish<M, P>(problem, first, step, token, acc);
}

}  // namespace HR_ISA
