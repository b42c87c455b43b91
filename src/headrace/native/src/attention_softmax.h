// Scores of one tile → probabilities, their sum and their maximum, for a block of rows.
//
// All rows of a block go together: first every maximum, then every exponential. A row alone is one
// long chain (maximum, fold over lanes, exponential, sum); a core does not look far enough ahead to
// fill its wait with the next row. The order within a row is fixed by docs/numerics.md.
#pragma once

#include "attention_plan.h"
#include "elementary.h"
#include "kv_elements.h"

namespace HR_ISA {

// The tree of docs/numerics.md over each of `rows` vectors: out[r] = lanes of x[r] folded by op.
template <int rows, class Op>
[[gnu::always_inline]] static inline void fold_lanes(const f32x16 (&x)[rows], float* out, Op op) {
#ifdef HR_AVX512
  if constexpr (rows > 2) {  // 8 vectors at once: each step folds two into one
    f32x16 y[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) y[r] = x[r < rows ? r : rows - 1];
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) {
      const __m512 a = y[2 * i].v, b = y[2 * i + 1].v;
      y[i] = op(f32x16{_mm512_shuffle_f32x4(a, b, 0x44)}, f32x16{_mm512_shuffle_f32x4(a, b, 0xee)});
    }
#pragma GCC unroll 8
    for (int i = 0; i < 2; ++i) {
      const __m512 a = y[2 * i].v, b = y[2 * i + 1].v;
      y[i] = op(f32x16{_mm512_shuffle_f32x4(a, b, 0x88)}, f32x16{_mm512_shuffle_f32x4(a, b, 0xdd)});
    }
    const __m512 a = y[0].v, b = y[1].v;
    const __m512 c =
        op(f32x16{_mm512_shuffle_ps(a, b, 0x44)}, f32x16{_mm512_shuffle_ps(a, b, 0xee)}).v;
    const __m512 d =
        op(f32x16{_mm512_shuffle_ps(c, c, 0x88)}, f32x16{_mm512_shuffle_ps(c, c, 0xdd)}).v;
    // Row r came to rest in lane r % 4 · 4 + r / 4.
    const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    store_first(out, f32x16{_mm512_permutexvar_ps(at, d)}, rows);
    return;
  }
#endif
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) out[r] = op.tree(x[r]);
}

struct MaxOp {
  f32x16 operator()(f32x16 a, f32x16 b) const { return max(a, b); }
  float tree(f32x16 x) const { return tree_max(x); }
};
struct SumOp {
  f32x16 operator()(f32x16 a, f32x16 b) const { return a + b; }
  float tree(f32x16 x) const { return tree_sum(x); }
};

static inline f32x16 capped(f32x16 x, float soft_cap) {
  return splat(soft_cap) * tanh(x / splat(soft_cap));
}

// `inside` on the visible lanes of run i, `outside` elsewhere.
static inline f32x16 visible(Range range, int i, f32x16 inside, float outside) {
  const auto lanes = [](int n) { return first_lanes(n < 0 ? 0 : (n > 16 ? 16 : n)); };
  const int first = range.first - i * kRun, end = range.end - i * kRun;
  if (first > 0) inside = select(lanes(first), splat(outside), inside);
  if (end < kRun) inside = select(lanes(end), inside, splat(outside));
  return inside;
}

// Runs first_run … end_run-1, in groups of `step`. whole: every row sees all of the tile.
template <class E, int rows, int step, bool whole>
static inline void probabilities_in(const float* s, const Range* ranges, int first_run, int end_run,
                                    typename E::Operand* p, float* m, float* l) {
  const f32x16 lowest = splat(-__builtin_inff());
  f32x16 top[rows], sum[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    // max(x, y) is y where x is NaN: such a score does not reach m, but the sum.
    f32x16 even = lowest, odd = lowest;
    for (int i = first_run; i < end_run; i += 2) {
      const f32x16 a = load(s + r * kTile + i * kRun), b = load(s + r * kTile + (i + 1) * kRun);
      even = max(whole ? a : visible(ranges[r], i, a, -__builtin_inff()), even);
      odd = max(whole ? b : visible(ranges[r], i + 1, b, -__builtin_inff()), odd);
    }
    top[r] = max(even, odd);
  }
  fold_lanes(top, m, MaxOp{});
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const f32x16 most = splat(m[r]);
    sum[r] = zero();
    for (int i = first_run; i < end_run; i += step) {
      f32x16 x[step];
#pragma GCC unroll 8
      for (int j = 0; j < step; ++j) x[j] = load(s + r * kTile + (i + j) * kRun) - most;
      exp_nonpositive(x);
#pragma GCC unroll 8
      for (int j = 0; j < step; ++j) {
        if constexpr (!whole) x[j] = visible(ranges[r], i + j, x[j], 0.0f);
        sum[r] = sum[r] + x[j];
      }
#pragma GCC unroll 8
      for (int j = 0; j < step; j += 2)
        E::store_operands(p + r * kTile + (i + j) * kRun, x[j], x[j + 1]);
    }
  }
  fold_lanes(sum, l, SumOp{});
}

// s: scores [rows][kTile] (overwritten where there is a cap). p: probabilities, rounded; +0 where
// invisible, in the runs that some row sees.
template <class E, int rows>
static void probabilities(float* s, const Range* ranges, float soft_cap, typename E::Operand* p,
                          float* m, float* l) {
  constexpr int step = kWide ? 8 : 2, few = kWide ? 4 : 2;
  const int first_run = ranges[0].first / kRun, end_run = (ranges[rows - 1].end - 1) / kRun + 1;
  if (soft_cap > 0)
    for (int r = 0; r < rows; ++r)
      for (int i = first_run * kRun; i < end_run * kRun; i += kRun)
        store(s + r * kTile + i, capped(load(s + r * kTile + i), soft_cap));
  if (ranges[0].end == kTile && ranges[rows - 1].first == 0)
    probabilities_in<E, rows, step, true>(s, ranges, 0, kRuns, p, m, l);
  else
    probabilities_in<E, rows, few, false>(s, ranges, first_run / few * few,
                                          (end_run + few - 1) / few * few, p, m, l);
}

}  // namespace HR_ISA
