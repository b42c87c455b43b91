// Everything between the matmuls and attention: embed, norms, rope, gates, sums, row selection.
//
// Shapes: matrices [rows, columns] with a row stride. Plan: row-wise, on tiles (step.h); no
// reduction is ever split. Bytes: each input once, each output once, none for what stays local.
// Outputs may be their inputs. Arithmetic: docs/numerics.md, "Norms" and "Element-wise".
#include <cstring>

#include "dequantize.h"
#include "elementary.h"
#include "kernels/ops.h"

namespace HR_ISA {

// body(row, first column, number of columns) over the tile's part of a matrix of `columns`.
template <class Body>
static inline void for_rows(int64_t columns, const RowTile& tile, Body body) {
  const int64_t end = tile.end_column < columns ? tile.end_column : columns;
  if (tile.column >= end) return;
  for (int64_t row = tile.row; row < tile.end_row; ++row) body(row, tile.column, end - tile.column);
}

// out = f(x) on n elements, 16 at a time; f is given the same zero-filled lanes on every level.
template <class F>
static inline void map(const float* x, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, f(load(x + i)));
  if (const int rest = static_cast<int>(n - i); rest > 0)
    store_first(out + i, f(load_first(x + i, rest)), rest);
}
template <class F>
static inline void map(const float* a, const float* b, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, f(load(a + i), load(b + i)));
  if (const int rest = static_cast<int>(n - i); rest > 0)
    store_first(out + i, f(load_first(a + i, rest), load_first(b + i, rest)), rest);
}

template <class F>
static inline void unary(const headrace::UnaryArgs& args, const RowTile& tile, F f) {
  for_rows(args.x.columns, tile, [&](int64_t row, int64_t column, int64_t n) {
    map(args.x.at(row, column, tile), args.out.at(row, column, tile), n, f);
  });
}

static inline f32x16 gelu_lanes(f32x16 x) {
  const f32x16 cube = (x * x) * x;
  const f32x16 inner = splat(0.7978845608f) * fma(splat(0.044715f), cube, x);  // √(2/π)
  return (splat(0.5f) * x) * (splat(1.0f) + tanh(inner));
}

static inline f32x16 silu_lanes(f32x16 g) {
  const f32x16 minus = from_bits(bits(g) + splati(static_cast<int32_t>(0x80000000u)));
  return g / (splat(1.0f) + exp(minus));
}

// ---- gathers ----------------------------------------------------------------------------------

void embed(const headrace::EmbedArgs& args, const Step& step, const RowTile& tile) {
  const headrace::RawMatrix& table = args.table;
  for (int64_t t = tile.row; t < tile.end_row; ++t) {
    const int64_t index = args.by_position ? step.positions[t] : step.tokens[t];
    float* out = args.out.at(t, 0, tile);
    // An index outside the table is refused long before; here it must only never be read.
    const bool ok =
        index >= 0 && index < table.n &&
        headrace::dequantize_row(table.format, table.data + index * table.row_bytes, table.k, out);
    if (!ok)
      for (int64_t i = 0; i < table.k; ++i) out[i] = __builtin_nanf("");
  }
}

void rows(const headrace::RowsArgs& args, const Step& step, const RowTile& tile) {
  const int32_t* index = step.rows[static_cast<int>(args.out.rows)];
  for_rows(args.out.columns, tile, [&](int64_t row, int64_t column, int64_t n) {
    const int64_t source = index != nullptr ? index[row] : row;
    std::memcpy(args.out.at(row, column, tile), args.x.data + source * args.x.stride + column,
                static_cast<size_t>(n) * sizeof(float));
  });
}

// ---- norms ------------------------------------------------------------------------------------

void rms_norm(const headrace::RmsNormArgs& args, const Step& step, const RowTile& tile) {
  const int64_t n = args.x.columns / args.groups;
  const int64_t begin = tile.row * args.groups, end = tile.end_row * args.groups;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / args.groups, first = i % args.groups * n;
    const float* x = args.x.at(row, first, tile);
    float* out = args.out.at(row, first, tile);
    f32x16 squares = zero();
    int64_t c = 0;
    for (; c + 16 <= n; c += 16) squares = fma(load(x + c), load(x + c), squares);
    if (const int rest = static_cast<int>(n - c); rest > 0) {
      const f32x16 tail = load_first(x + c, rest);
      squares = fma(tail, tail, squares);
    }
    const f32x16 mean = splat(tree_sum(squares) / static_cast<float>(n));
    const f32x16 r = splat(1.0f) / sqrt(mean + splat(args.eps));
    map(x, args.weight, out, n, [r](f32x16 v, f32x16 w) { return (v * r) * w; });
  }
}

void layer_norm(const headrace::LayerNormArgs& args, const Step& step, const RowTile& tile) {
  const int64_t n = args.x.columns, full = n / 16 * 16;
  const int rest = static_cast<int>(n - full);
  for (int64_t row = tile.row; row < tile.end_row; ++row) {
    const float* x = args.x.at(row, 0, tile);
    float* out = args.out.at(row, 0, tile);
    f32x16 sum = zero(), squares = zero();
    for (int64_t c = 0; c < full; c += 16) sum = sum + load(x + c);
    if (rest > 0) sum = sum + load_first(x + full, rest);
    const f32x16 mean = splat(tree_sum(sum) / static_cast<float>(n));
    for (int64_t c = 0; c < full; c += 16) {
      const f32x16 d = load(x + c) - mean;
      squares = fma(d, d, squares);
    }
    if (rest > 0) {
      const f32x16 d = select(first_lanes(rest), load_first(x + full, rest) - mean, zero());
      squares = fma(d, d, squares);
    }
    const f32x16 variance = splat(tree_sum(squares) / static_cast<float>(n));
    const f32x16 r = splat(1.0f) / sqrt(variance + splat(args.eps));
    for (int64_t c = 0; c < full; c += 16)
      store(out + c, fma((load(x + c) - mean) * r, load(args.weight + c), load(args.bias + c)));
    if (rest > 0)
      store_first(out + full,
                  fma((load_first(x + full, rest) - mean) * r, load_first(args.weight + full, rest),
                      load_first(args.bias + full, rest)),
                  rest);
  }
}

// ---- rope -------------------------------------------------------------------------------------

static inline f32x16 negate(f32x16 x) {
  return from_bits(bits(x) + splati(static_cast<int32_t>(0x80000000u)));  // flips the sign bit
}

// Pairs (i, i + half), 16 at a time.
static inline void rotate_half(const float* x, float* out, int64_t half, const float* cos,
                               const float* sin) {
  for (int64_t i = 0; i < half; i += 16) {
    const int n = half - i < 16 ? static_cast<int>(half - i) : 16;
    const f32x16 x0 = load_first(x + i, n), x1 = load_first(x + half + i, n);
    const f32x16 c = load_first(cos + i, n), s = load_first(sin + i, n);
    store_first(out + i, fma(x0, c, negate(x1 * s)), n);
    store_first(out + half + i, fma(x0, s, x1 * c), n);
  }
}

// Pairs (2i, 2i + 1).
static inline void rotate_interleaved(const float* x, float* out, int64_t half, const float* cos,
                                      const float* sin) {
  for (int64_t i = 0; i < half; ++i) {
    const float x0 = x[2 * i], x1 = x[2 * i + 1];
    out[2 * i] = __builtin_fmaf(x0, cos[i], -(x1 * sin[i]));
    out[2 * i + 1] = __builtin_fmaf(x0, sin[i], x1 * cos[i]);
  }
}

void rope(const headrace::RopeArgs& args, const Step& step, const RowTile& tile) {
  const int64_t dim = args.x.columns / args.heads, half = args.rotary_dim / 2;
  const int64_t offset = step.num_tokens == step.num_requests ? args.decode_offset : 0;
  const int64_t begin = tile.row * args.heads, end = tile.end_row * args.heads;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / args.heads, first = i % args.heads * dim;
    const int64_t turned = step.positions[row] + offset, position = turned > 0 ? turned : 0;
    const float* x = args.x.at(row, first, tile);
    float* out = args.out.at(row, first, tile);
    const float *cos = args.cos + position * half, *sin = args.sin + position * half;
    if (args.interleaved)
      rotate_interleaved(x, out, half, cos, sin);
    else
      rotate_half(x, out, half, cos, sin);
    if (out != x && dim > args.rotary_dim)
      std::memcpy(out + args.rotary_dim, x + args.rotary_dim,
                  static_cast<size_t>(dim - args.rotary_dim) * sizeof(float));
  }
}

// ---- element by element -----------------------------------------------------------------------

void gated(const headrace::GatedArgs& args, const Step& step, const RowTile& tile) {
  const auto run = [&](auto f) {
    for_rows(args.gate.columns, tile, [&](int64_t row, int64_t column, int64_t n) {
      map(args.gate.at(row, column, tile), args.up.at(row, column, tile),
          args.out.at(row, column, tile), n, f);
    });
  };
  if (args.kind == headrace::GateKind::Silu)
    run([](f32x16 g, f32x16 u) { return silu_lanes(g) * u; });
  else
    run([](f32x16 g, f32x16 u) { return gelu_lanes(g) * u; });
}

void gelu(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile) {
  unary(args, tile, [](f32x16 x) { return gelu_lanes(x); });
}

void scale(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile) {
  const f32x16 factor = splat(args.value);
  unary(args, tile, [factor](f32x16 x) { return x * factor; });
}

void soft_cap(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile) {
  const f32x16 cap = splat(args.value);
  unary(args, tile, [cap](f32x16 x) { return cap * tanh(x / cap); });
}

void exp(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile) {
  unary(args, tile, [](f32x16 x) { return exp(x); });
}

void exp_nonpositive(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile) {
  unary(args, tile, [](f32x16 x) { return exp_nonpositive(x); });
}

void copy(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile) {
  for_rows(args.x.columns, tile, [&](int64_t row, int64_t column, int64_t n) {
    std::memmove(args.out.at(row, column, tile), args.x.at(row, column, tile),
                 static_cast<size_t>(n) * sizeof(float));
  });
}

void add(const headrace::BinaryArgs& args, const Step& step, const RowTile& tile) {
  for_rows(args.a.columns, tile, [&](int64_t row, int64_t column, int64_t n) {
    map(args.a.at(row, column, tile), args.b.at(row, column, tile), args.out.at(row, column, tile),
        n, [](f32x16 a, f32x16 b) { return a + b; });
  });
}

}  // namespace HR_ISA
