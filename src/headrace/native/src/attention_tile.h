// One tile of attention: a few query rows against 128 positions, from an empty state.
//
// The result is a partial per row: O[D] (not normalised), the running maximum m and the sum l. The
// order of every addition is fixed by docs/numerics.md, "Attention"; blocking over rows and vectors
// only reuses loads. Row, here: one query head of one token.
//
//   positions   0        16        …                       127        a row sees [first, end)
//   runs        [-- 0 --][-- 1 --] …            [-- 7 --]             of the tile
#pragma once

#include <cstdint>

#include "attention_fold.h"
#include "attention_plan.h"
#include "attention_softmax.h"
#include "kv_elements.h"

namespace HR_ISA {

// Where the keys and values of one tile lie: a pointer to each run of 16 positions that some row
// sees.
struct TileRuns {
  const std::byte *keys[kRuns], *values[kRuns];
};
// A tile, and the one to come, which is prefetched meanwhile (its pointers may be anything).
struct TileMemory : TileRuns {
  TileRuns next;
};

// Reads a word of every cache line of `bytes` bytes, so that few rows do not wait for line after
// line. A core drops prefetches while many are under way, and a product of few rows asks faster
// than memory answers; loads are never dropped, and four instructions, each striding on, are what
// its own prefetchers follow best (one instruction: half the rate).
static inline void touch(const std::byte* start, int64_t bytes) {
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    const auto* words = reinterpret_cast<const volatile int32_t*>(start + i);
    (void)words[0], (void)words[16], (void)words[32], (void)words[48];  // four instructions
  }
}

// ---- scores: s[row][position], lanes are positions --------------------------------------------

// Runs i … i + runs - 1.
template <class E, int rows, int runs>
static inline void score_block(const typename E::Operand* q, int64_t q_stride,
                               const TileMemory& tile, int i, int64_t dim, float* s) {
  f32x16 acc[rows][runs];
  const std::byte *k[runs], *next[runs];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < runs; ++c) acc[r][c] = zero();
#pragma GCC unroll 8
  for (int c = 0; c < runs; ++c) {
    k[c] = tile.keys[i + c];
    next[c] = tile.next.keys[i + c];
  }
  for (int64_t d = 0; d < dim; d += 2) {
    typename E::Pair pairs[runs];
#pragma GCC unroll 8
    for (int c = 0; c < runs; ++c) {
      pairs[c] = E::load_pairs(k[c] + d * kRun * E::bytes);
      prefetch_pairs<E>(next[c] + d * kRun * E::bytes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const typename E::Pair x = E::broadcast(q + r * q_stride + d);
#pragma GCC unroll 8
      for (int c = 0; c < runs; ++c) acc[r][c] = E::dot(acc[r][c], x, pairs[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < runs; ++c) store(s + r * kTile + (i + c) * kRun, acc[r][c]);
}

// Runs first_run … end_run-1.
template <class E, int rows>
static void scores(const typename E::Operand* q, int64_t q_stride, const TileMemory& tile,
                   int64_t dim, int first_run, int end_run, float* s) {
  int i = first_run;
  if constexpr (E::max_vectors >= 4)
    for (; i + 4 <= end_run; i += 4) score_block<E, rows, 4>(q, q_stride, tile, i, dim, s);
  if constexpr (E::max_vectors >= 2)
    for (; i + 2 <= end_run; i += 2) score_block<E, rows, 2>(q, q_stride, tile, i, dim, s);
  for (; i < end_run; ++i) score_block<E, rows, 1>(q, q_stride, tile, i, dim, s);
}

// ---- values: O[row][d], lanes are dims --------------------------------------------------------

// Pairs first … end-1 of the tile, dims d0 …; tail > 0: only that many dims of the (one) vector
// exist. fresh: O starts at +0, else it is continued.
template <class E, int rows, int vectors>
static inline void value_block(const typename E::Operand* p, const TileMemory& tile, int64_t dim,
                               int64_t d0, int tail, int first, int end, bool fresh, float* o,
                               int64_t o_stride) {
  f32x16 acc[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c)
      acc[r][c] = fresh ? zero() : load(o + r * o_stride + d0 + c * 16);
  for (int j = first; j < end;) {
    const std::byte *v = tile.values[j / 8], *next = tile.next.values[j / 8];
    for (const int stop = end < (j / 8 + 1) * 8 ? end : (j / 8 + 1) * 8; j < stop; ++j) {
      const int64_t at = (j % 8 * dim + d0) * 2 * E::bytes;
      typename E::Pair pairs[vectors];
      if (vectors == 1 && tail > 0) {
        pairs[0] = load_first_pairs<E>(v + at, tail);
      } else {
#pragma GCC unroll 8
        for (int c = 0; c < vectors; ++c) {
          pairs[c] = E::load_pairs(v + at + c * 32 * E::bytes);
          prefetch_pairs<E>(next + at + c * 32 * E::bytes);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const typename E::Pair x = E::broadcast(p + r * kTile + 2 * j);
#pragma GCC unroll 8
        for (int c = 0; c < vectors; ++c) acc[r][c] = E::dot(acc[r][c], x, pairs[c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) store(o + r * o_stride + d0 + c * 16, acc[r][c]);
}

template <class E, int rows>
static void values(const typename E::Operand* p, const TileMemory& tile, int64_t dim, int first,
                   int end, bool fresh, float* o, int64_t o_stride) {
  if (first >= end && !fresh) return;
  int64_t d = 0;
  if constexpr (E::max_vectors >= 4)
    for (; d + 64 <= dim; d += 64)
      value_block<E, rows, 4>(p, tile, dim, d, 0, first, end, fresh, o, o_stride);
  if constexpr (E::max_vectors >= 2)
    for (; d + 32 <= dim; d += 32)
      value_block<E, rows, 2>(p, tile, dim, d, 0, first, end, fresh, o, o_stride);
  for (; d + 16 <= dim; d += 16)
    value_block<E, rows, 1>(p, tile, dim, d, 0, first, end, fresh, o, o_stride);
  if (d < dim)
    value_block<E, rows, 1>(p, tile, dim, d, static_cast<int>(dim - d), first, end, fresh, o,
                            o_stride);
}

// Pair j of one row, of which only the even or only the odd position is visible: the other one's
// value may be anything, a NaN included, and is never multiplied.
template <class E>
static void half_pair(const typename E::Operand* p, const TileMemory& tile, int64_t dim, int j,
                      bool even, float* o) {
  const typename E::Pair x = E::broadcast(p + 2 * j);
  for (int64_t d = 0; d < dim; d += 16) {
    const int n = dim - d < 16 ? static_cast<int>(dim - d) : 16;
    const std::byte* at = tile.values[j / 8] + (j % 8 * dim + d) * 2 * E::bytes;
    const typename E::Pair v = n < 16 ? load_first_pairs<E>(at, n) : E::load_pairs(at);
    store(o + d, E::dot(load(o + d), x, even ? E::only_even(v) : E::only_odd(v)));
  }
}

// ---- the tile ---------------------------------------------------------------------------------

// `rows` rows whose first and end are both ascending. s and p: workspaces of rows · kTile.
template <class E, int rows>
static void tile_block(const typename E::Operand* q, int64_t q_stride, const TileMemory& tile,
                       int64_t k_dim, int64_t v_dim, float soft_cap, const Range* ranges, float* s,
                       typename E::Operand* p, const Partials& out) {
  scores<E, rows>(q, q_stride, tile, k_dim, ranges[0].first / kRun,
                  (ranges[rows - 1].end - 1) / kRun + 1, s);
  // Pairs that every row sees whole are done for all rows at once; those before and after, where
  // rows differ, row by row, in the same ascending order.
  const int common_end = ranges[0].end / 2;
  int common_first = (ranges[rows - 1].first + 1) / 2;
  if (common_first > common_end) common_first = common_end;
  probabilities<E, rows>(s, ranges, soft_cap, p, out.m, out.l);
  const int64_t stride = out.padded_dim;
  const bool fresh = ranges[0].first % 2 == 0 && ranges[0].first == ranges[rows - 1].first;
  for (int r = 0; r < rows && !fresh; ++r) {
    const Range range = ranges[r];
    float* o = out.o + r * stride;
    for (int64_t d = 0; d < stride; d += 16) store(o + d, zero());
    if (range.first % 2 != 0) half_pair<E>(p + r * kTile, tile, v_dim, range.first / 2, false, o);
    const int end = range.end / 2 < common_first ? range.end / 2 : common_first;
    values<E, 1>(p + r * kTile, tile, v_dim, (range.first + 1) / 2, end, false, o, stride);
  }
  values<E, rows>(p, tile, v_dim, common_first, common_end, fresh, out.o, stride);
  for (int r = 0; r < rows; ++r) {
    const Range range = ranges[r];
    float* o = out.o + r * stride;
    const int first = (range.first + 1) / 2 > common_end ? (range.first + 1) / 2 : common_end;
    values<E, 1>(p + r * kTile, tile, v_dim, first, range.end / 2, false, o, stride);
    if (range.end % 2 != 0) half_pair<E>(p + r * kTile, tile, v_dim, range.end / 2, true, o);
  }
}

}  // namespace HR_ISA
