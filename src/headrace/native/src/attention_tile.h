// One tile of attention: a few query rows against 128 positions, from an empty state.
//
// The result is a Partial per row: O[D] (not normalised), the running maximum m and the sum l. The
// order of every addition is fixed by docs/numerics.md, "Attention"; blocking over rows and vectors
// only reuses loads. Row, here: one query head of one token.
//
//   positions   0        16        …                       127        a row sees [first, end)
//   runs        [-- 0 --][-- 1 --] …            [-- 7 --]             of the tile
#pragma once

#include <cstdint>

#include "elementary.h"
#include "kv_elements.h"

namespace HR_ISA {

inline constexpr int kTile = 128, kRun = 16, kRuns = kTile / kRun;

struct Range {
  int first, end;  // positions of the tile; first < end
};

// The keys and values of one tile: a pointer to each run of 16 positions that some row sees.
struct TileMemory {
  const std::byte *keys[kRuns], *values[kRuns];
};

// ---- scores: s[row][position], lanes are positions --------------------------------------------

template <class E, int rows, int runs>
static inline void score_block(const typename E::Operand* q, int64_t q_stride,
                               const std::byte* const* keys, int64_t dim, float* s) {
  f32x16 acc[rows][runs];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < runs; ++i) acc[r][i] = zero();
  const std::byte* k[runs];
#pragma GCC unroll 8
  for (int i = 0; i < runs; ++i) k[i] = keys[i];
  for (int64_t d = 0; d < dim; d += 2) {
    typename E::Pair pairs[runs];
#pragma GCC unroll 8
    for (int i = 0; i < runs; ++i) pairs[i] = E::load_pairs(k[i] + d * kRun * E::bytes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const typename E::Pair x = E::broadcast(q + r * q_stride + d);
#pragma GCC unroll 8
      for (int i = 0; i < runs; ++i) acc[r][i] = E::dot(acc[r][i], x, pairs[i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < runs; ++i) store(s + r * kTile + i * kRun, acc[r][i]);
}

// Runs first_run … end_run-1.
template <class E, int rows>
static void scores(const typename E::Operand* q, int64_t q_stride, const TileMemory& tile,
                   int64_t dim, int first_run, int end_run, float* s) {
  int i = first_run;
  if constexpr (E::max_vectors >= 4)
    for (; i + 4 <= end_run; i += 4)
      score_block<E, rows, 4>(q, q_stride, tile.keys + i, dim, s + i * kRun);
  if constexpr (E::max_vectors >= 2)
    for (; i + 2 <= end_run; i += 2)
      score_block<E, rows, 2>(q, q_stride, tile.keys + i, dim, s + i * kRun);
  for (; i < end_run; ++i) score_block<E, rows, 1>(q, q_stride, tile.keys + i, dim, s + i * kRun);
}

// ---- probabilities ----------------------------------------------------------------------------

static inline mask16 lanes_below(int n) { return first_lanes(n < 0 ? 0 : (n > 16 ? 16 : n)); }

// `inside` on the visible lanes of run i, `outside` elsewhere.
static inline f32x16 visible(Range range, int i, f32x16 inside, float outside) {
  const int first = range.first - i * kRun, end = range.end - i * kRun;
  if (first > 0) inside = select(lanes_below(first), splat(outside), inside);
  if (end < kRun) inside = select(lanes_below(end), inside, splat(outside));
  return inside;
}

// s: scores of one row, overwritten. p: probabilities, rounded; +0 where invisible, in whole runs.
template <class E>
static void probabilities(float* s, Range range, float soft_cap, typename E::Operand* p, float& m,
                          float& l) {
  const int first_run = range.first / kRun, end_run = (range.end - 1) / kRun + 1;
  f32x16 top = splat(-__builtin_inff());
  for (int i = first_run; i < end_run; ++i) {
    f32x16 x = load(s + i * kRun);
    if (soft_cap > 0) x = splat(soft_cap) * tanh(x / splat(soft_cap));
    x = visible(range, i, x, -__builtin_inff());
    store(s + i * kRun, x);
    top = max(x, top);  // a NaN is passed over here and shows in the sum
  }
  m = tree_max(top);
  f32x16 sum = zero();
  for (int i = first_run; i < end_run; ++i) {
    const f32x16 x = visible(range, i, exp_nonpositive(load(s + i * kRun) - splat(m)), 0.0f);
    sum = sum + x;
    E::store_operand(p + i * kRun, x);
  }
  l = tree_sum(sum);
}

// ---- values: O[row][d], lanes are dims --------------------------------------------------------

// Pairs first … end-1 of the tile; tail > 0: only that many dims of the (one) vector exist.
template <class E, int rows, int vectors>
static inline void value_block(const typename E::Operand* p, const std::byte* const* values,
                               int64_t dim, int64_t d0, int tail, int first, int end, float* o,
                               int64_t o_stride) {
  f32x16 acc[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) acc[r][i] = load(o + r * o_stride + i * 16);
  for (int j = first; j < end; ++j) {
    const std::byte* v = values[j / 8] + (j % 8 * dim + d0) * 2 * E::bytes;
    typename E::Pair pairs[vectors];
    if (vectors == 1 && tail > 0) {
      pairs[0] = load_first_pairs<E>(v, tail);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < vectors; ++i) pairs[i] = E::load_pairs(v + i * 32 * E::bytes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const typename E::Pair x = E::broadcast(p + r * kTile + 2 * j);
#pragma GCC unroll 8
      for (int i = 0; i < vectors; ++i) acc[r][i] = E::dot(acc[r][i], x, pairs[i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) store(o + r * o_stride + i * 16, acc[r][i]);
}

template <class E, int rows>
static void values(const typename E::Operand* p, const TileMemory& tile, int64_t dim, int first,
                   int end, float* o, int64_t o_stride) {
  if (first >= end) return;
  int64_t d = 0;
  if constexpr (E::max_vectors >= 4)
    for (; d + 64 <= dim; d += 64)
      value_block<E, rows, 4>(p, tile.values, dim, d, 0, first, end, o + d, o_stride);
  if constexpr (E::max_vectors >= 2)
    for (; d + 32 <= dim; d += 32)
      value_block<E, rows, 2>(p, tile.values, dim, d, 0, first, end, o + d, o_stride);
  for (; d + 16 <= dim; d += 16)
    value_block<E, rows, 1>(p, tile.values, dim, d, 0, first, end, o + d, o_stride);
  if (d < dim)
    value_block<E, rows, 1>(p, tile.values, dim, d, static_cast<int>(dim - d), first, end, o + d,
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

// A partial is stride floats: O[dim rounded up to 16], then m, l.
struct PartialShape {
  int64_t padded_dim, stride;
};
static inline PartialShape partial_shape(int64_t dim) {
  const int64_t padded = (dim + 15) / 16 * 16;
  return {padded, padded + 16};
}

// `rows` rows whose first and end are both ascending. s and p: workspaces of rows · kTile.
template <class E, int rows>
static void tile_block(const typename E::Operand* q, int64_t q_stride, const TileMemory& tile,
                       int64_t k_dim, int64_t v_dim, float soft_cap, const Range* ranges, float* s,
                       typename E::Operand* p, float* partials) {
  const PartialShape shape = partial_shape(v_dim);
  scores<E, rows>(q, q_stride, tile, k_dim, ranges[0].first / kRun,
                  (ranges[rows - 1].end - 1) / kRun + 1, s);
  // Pairs that every row sees whole are done for all rows at once; those before and after, where
  // rows differ, row by row, in the same ascending order.
  int common_first = 0, common_end = kTile / 2;
  for (int r = 0; r < rows; ++r) {
    const Range range = ranges[r];
    float* partial = partials + r * shape.stride;
    probabilities<E>(s + r * kTile, range, soft_cap, p + r * kTile, partial[shape.padded_dim],
                     partial[shape.padded_dim + 1]);
    const int first = (range.first + 1) / 2, end = range.end / 2;
    if (first > common_first) common_first = first;
    if (end < common_end) common_end = end;
  }
  if (common_first > common_end) common_first = common_end;
  for (int r = 0; r < rows; ++r) {
    const Range range = ranges[r];
    float* o = partials + r * shape.stride;
    for (int64_t d = 0; d < shape.padded_dim; d += 16) store(o + d, zero());
    if (range.first % 2 != 0) half_pair<E>(p + r * kTile, tile, v_dim, range.first / 2, false, o);
    const int end = range.end / 2 < common_first ? range.end / 2 : common_first;
    values<E, 1>(p + r * kTile, tile, v_dim, (range.first + 1) / 2, end, o, shape.stride);
  }
  values<E, rows>(p, tile, v_dim, common_first, common_end, partials, shape.stride);
  for (int r = 0; r < rows; ++r) {
    const Range range = ranges[r];
    float* o = partials + r * shape.stride;
    const int first = (range.first + 1) / 2 > common_end ? (range.first + 1) / 2 : common_end;
    values<E, 1>(p + r * kTile, tile, v_dim, first, range.end / 2, o, shape.stride);
    if (range.end % 2 != 0) half_pair<E>(p + r * kTile, tile, v_dim, range.end / 2, true, o);
  }
}

}  // namespace HR_ISA
