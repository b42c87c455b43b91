// Activations as a matmul wants them: f32, bf16 or int8 areas, one per token (matmul.h).
//
// x: f32 [T, K] → out: T areas of row_bytes. Row-wise, by blocks of 32 columns.
#include "kernels/ops.h"
#include "matmul.h"
#include "simd.h"

namespace HR_ISA {

using headrace::ActivationBlock;
using headrace::ActivationKind;
using headrace::kBlock;

namespace {

// docs/numerics.md, "Activation rounding, int8". n: numbers present, 1 … 32; the others count as 0.
void quantise(const float* x, int n, ActivationBlock* out) {
  const f32x16 x0 = load_first(x, n < 16 ? n : 16);
  const f32x16 x1 = n > 16 ? load_first(x + 16, n - 16) : zero();
  // Without the sign bit, floats order as integers, infinities and NaNs above all others.
  const i32x16 magnitude = splati(0x7fffffff);
  const int32_t most = max_lane(maxi(bits(x0) & magnitude, bits(x1) & magnitude));
  constexpr int32_t kInfinity = 0x7f800000, kTiny = (127 - 120) << 23;  // 2^-120
  if (most >= kInfinity || most < kTiny) {
    *out = ActivationBlock{};
    if (most >= kInfinity) out->scale = out->sum = __builtin_nanf("");
    return;
  }
  float amax;
  __builtin_memcpy(&amax, &most, 4);
  const f32x16 inv = splat(127.0f / amax);
  // |x · inv| ≤ 127 · (1 + 2^-23), so rounding never passes ±127.
  const __m256i codes = to_bytes(to_int(x0 * inv), to_int(x1 * inv));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->codes), codes);
  const TwoSums sums = sum_bytes(codes);
  const int32_t s = sums.first + sums.second;
  out->scale = amax / 127.0f;
  out->sum = out->scale * static_cast<float>(s);
  out->minus8 = -8 * s;
  out->minus16 = -16 * s;
  out->minus128 = -128 * s;
  out->minus32[0] = -32 * sums.first;
  out->minus32[1] = -32 * sums.second;
  out->sums[0] = static_cast<int16_t>(sums.first);
  out->sums[1] = static_cast<int16_t>(sums.second);
}

// n numbers → one block of 32 in `out`, the rest +0.
void copy_f32(const float* x, int n, float* out) {
  store(out, load_first(x, n < 16 ? n : 16));
  store(out + 16, n > 16 ? load_first(x + 16, n - 16) : zero());
}
void round_bf16(const float* x, int n, uint16_t* out) {
  store_low16(out, to_bf16(load_first(x, n < 16 ? n : 16)));
  store_low16(out + 16, to_bf16(n > 16 ? load_first(x + 16, n - 16) : zero()));
}

}  // namespace

template <class Element, void (*convert)(const float*, int, Element*)>
static void convert_rows(const headrace::PrepareArgs& args, const RowTile& tile, int64_t step) {
  const int64_t end = tile.end_column < args.x.columns ? tile.end_column : args.x.columns;
  for (int64_t row = tile.row; row < tile.end_row; ++row) {
    const float* x = args.x.at(row, tile.column, tile);
    auto* out = reinterpret_cast<Element*>(args.out + (row + tile.copy) * args.row_bytes) +
                tile.column / kBlock * step;
    for (int64_t left = end - tile.column; left > 0; left -= kBlock, x += kBlock, out += step)
      convert(x, left < kBlock ? static_cast<int>(left) : 32, out);
  }
}

void prepare(const headrace::PrepareArgs& args, const Step& step, const RowTile& tile) {
  switch (args.kind) {
    case ActivationKind::F32:
      return convert_rows<float, copy_f32>(args, tile, kBlock);
    case ActivationKind::BF16:
      return convert_rows<uint16_t, round_bf16>(args, tile, kBlock);
    case ActivationKind::Int8:
      return convert_rows<ActivationBlock, quantise>(args, tile, 1);
  }
}

int64_t activation_row_bytes(ActivationKind kind, int64_t k) {
  return headrace::activation_area_bytes(kind, k);
}

}  // namespace HR_ISA
