// Partial results of attention and how they are joined (docs/numerics.md, "Fold").
#pragma once

#include <cstdint>
#include <cstring>

#include "elementary.h"

namespace HR_ISA {

// Partials of consecutive rows: O[row][padded_dim], m[row], l[row].
struct Partials {
  float *o, *m, *l;
  int64_t padded_dim;

  Partials from(int64_t row) const { return {o + row * padded_dim, m + row, l + row, padded_dim}; }
};
// Laid out in memory of partials_floats(rows, padded_dim) floats.
static inline int64_t partials_floats(int64_t rows, int64_t padded_dim) {
  return rows * padded_dim + 2 * ((rows + 15) / 16 * 16);
}
static inline Partials partials_in(float* memory, int64_t rows, int64_t padded_dim) {
  float* m = memory + rows * padded_dim;
  return {memory, m, m + (rows + 15) / 16 * 16, padded_dim};
}

static inline void copy_partials(const Partials& to, const Partials& from, int64_t rows) {
  const auto copy = [](float* target, const float* source, int64_t n) {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(float));
  };
  copy(to.o, from.o, rows * to.padded_dim);
  copy(to.m, from.m, rows);
  copy(to.l, from.l, rows);
}

// left ← left ∘ right, row by row; the factors of 16 rows at a time.
static inline void fold(const Partials& left, const Partials& right, int64_t rows) {
  for (int64_t r = 0; r < rows; r += 16) {
    const int n = rows - r < 16 ? static_cast<int>(rows - r) : 16;
    const f32x16 m1 = load_first(left.m + r, n), m2 = load_first(right.m + r, n), top = max(m1, m2),
                 a = exp_nonpositive(m1 - top), b = exp_nonpositive(m2 - top);
    alignas(64) float left_factor[16], right_factor[16];
    store(left_factor, a);
    store(right_factor, b);
    store_first(left.m + r, top, n);
    store_first(left.l + r, fma(load_first(right.l + r, n), b, load_first(left.l + r, n) * a), n);
    for (int i = 0; i < n; ++i) {
      const f32x16 fa = splat(left_factor[i]), fb = splat(right_factor[i]);
      float* o = left.o + (r + i) * left.padded_dim;
      const float* o2 = right.o + (r + i) * left.padded_dim;
      for (int64_t d = 0; d < left.padded_dim; d += 16)
        store(o + d, fma(load(o2 + d), fb, load(o + d) * fa));
    }
  }
}

static inline void write_result(const Partials& row, int64_t dim, float* out) {
  const f32x16 inverse = splat(1.0f) / splat(*row.l);
  for (int64_t d = 0; d < dim; d += 16) {
    const int n = dim - d < 16 ? static_cast<int>(dim - d) : 16;
    store_first(out + d, load(row.o + d) * inverse, n);
  }
}

}  // namespace HR_ISA
