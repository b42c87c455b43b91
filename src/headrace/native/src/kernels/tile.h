// One tile of a matmul: P panels of 16 output rows × M tokens, over the whole of K.
//
// The arithmetic of one (output row, token) is that of docs/numerics.md, "Linear", and is the same
// for every P and M: sums run in the lanes, block after block. A block of weights is unpacked once
// and used for all M tokens. Traffic: P · panel_bytes + M · activation_area_bytes.
#pragma once

#include "kernels/dot.h"

namespace HR_ISA {

// How far ahead a panel is fetched from memory.
constexpr int64_t kPrefetchBytes = 2048;

template <int64_t Bytes>
[[gnu::always_inline]] static inline void prefetch_block(const uint8_t* block) {
#pragma GCC unroll 32
  for (int64_t line = 0; line < Bytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(block + kPrefetchBytes + line), _MM_HINT_T0);
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

template <class W, int M, int P>
[[gnu::always_inline]] static inline void tile_bytes(const uint8_t* panel, int64_t panel_step,
                                                     const std::byte* activations,
                                                     int64_t area_bytes, int64_t blocks,
                                                     f32x16 (&acc)[P][M]) {
  typename W::Reader reader[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) reader[p].open(panel + p * panel_step);
  const auto* a = reinterpret_cast<const ActivationBlock*>(activations);
  const int64_t stride = area_bytes / static_cast<int64_t>(sizeof(ActivationBlock));
  for (int64_t b = 0; b < blocks; ++b, ++a) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      prefetch_block<W::kBlockBytes>(panel + p * panel_step + b * W::kBlockBytes);
      reader[p].next(b);
    }
    i32x16 sum[P][M];
    sum_block<W>(reader, a, stride, sum);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const f32x16 scale = reader[p].scale();
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t)
        acc[p][t] = fma(to_float(sum[p][t]), scale * splat(a[t * stride].scale), acc[p][t]);
      if constexpr (W::kHasMin) {
        const f32x16 minimum = reader[p].minimum();
#pragma GCC unroll 16
        for (int t = 0; t < M; ++t) acc[p][t] = fma(minimum, splat(a[t * stride].sum), acc[p][t]);
      }
      if constexpr (W::kTwoMinima) {
        const f32x16 minimum = reader[p].minimum();
        const i32x16 minima = reader[p].minima();
#pragma GCC unroll 16
        for (int t = 0; t < M; ++t) {
          const i32x16 j = dot2_words(zeroi(), minima, splat_word(a[t * stride].sums));
          acc[p][t] = fma(to_float(j), minimum * splat(a[t * stride].scale), acc[p][t]);
        }
      }
    }
  }
}

// ---- float activations ------------------------------------------------------------------------

template <class W, int M, int P>
[[gnu::always_inline]] static inline void tile_floats(const uint8_t* panel, int64_t panel_step,
                                                      const std::byte* activations,
                                                      int64_t area_bytes, int64_t blocks,
                                                      f32x16 (&acc)[P][M]) {
  constexpr bool kPairs = W::kDot == Dot::Pair;
  constexpr int kSteps = kPairs ? 16 : 32;  // one 4-byte word of activations each
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* block = panel + b * W::kBlockBytes;
    const std::byte* a = activations + b * kSteps * 4;
    f32x16 part[P][M];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      prefetch_block<W::kBlockBytes>(block + p * panel_step);
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
static void tile(const Problem& problem, int64_t first, int64_t step, int64_t token) {
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
                        acc);
  else
    tile_floats<W, M, P>(panel, step * problem.panel_bytes, a, problem.area_bytes, problem.blocks,
                         acc);
  finish<M, P>(problem, first, step, token, acc);
}

}  // namespace HR_ISA
