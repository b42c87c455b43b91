// Activations as a matmul wants them: f32, bf16 or int8 areas, one per token (matmul.h).
//
// x: f32 [T, K] → out: T areas of row_bytes. Workers share tokens. Reads 4·T·K bytes.
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

void prepare(const headrace::PrepareArgs& args, const Step& step, Worker& worker) {
  const int64_t columns = args.x.columns, blocks = headrace::num_blocks(columns);
  const headrace::Share mine = share(step.count(args.x.rows) * blocks, worker, blocks);
  int64_t token = mine.begin / blocks, block = mine.begin % blocks;
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const float* x = args.x.data + token * args.x.stride + block * kBlock;
    const int64_t left = columns - block * kBlock;
    const int n = left < kBlock ? static_cast<int>(left) : 32;
    std::byte* out = args.out + token * args.row_bytes;
    switch (args.kind) {
      case ActivationKind::F32:
        copy_f32(x, n, reinterpret_cast<float*>(out) + block * kBlock);
        break;
      case ActivationKind::BF16:
        round_bf16(x, n, reinterpret_cast<uint16_t*>(out) + block * kBlock);
        break;
      case ActivationKind::Int8:
        quantise(x, n, reinterpret_cast<ActivationBlock*>(out) + block);
        break;
    }
    if (++block == blocks) {
      block = 0;
      ++token;
    }
  }
}

int64_t activation_row_bytes(ActivationKind kind, int64_t k) {
  return headrace::activation_area_bytes(kind, k);
}

}  // namespace HR_ISA
