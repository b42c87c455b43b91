// Loops that show a core's peak: nothing but the multiply-adds of one number format, on as many
// independent accumulators as hide their latency. They are upper limits for the matmul and
// attention kernels: operands stay in registers, and where a level has no instruction for a
// product, the work that a tile shares (unpacking, widening sums) is counted as shared.
//
// Bytes moved: none but `read`'s. What the compiler must not do is move a product out of the loop;
// an empty asm statement makes operands or accumulators opaque where it could.
#include "probe.h"

#include "simd.h"

namespace HR_ISA {

namespace {

#ifdef HR_AVX512
constexpr int kChains = 20;  // latency up to 6 cycles, two per cycle; 32 registers in all
static inline void opaque(f32x16& x) { asm volatile("" : "+v"(x.v)); }
#else
constexpr int kChains = 5;  // two registers each; 16 registers in all
static inline void opaque(f32x16& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }
#endif

int64_t probe_f32(int64_t rounds, const headrace::ProbeOperands& operands, void* out) {
  f32x16 x = load(reinterpret_cast<const float*>(operands.x));
  const f32x16 y = load(reinterpret_cast<const float*>(operands.y));
  f32x16 acc[kChains];
  for (f32x16& a : acc) a = zero();
  for (int64_t i = 0; i < rounds; ++i) {
    opaque(x);
#pragma GCC unroll 32
    for (f32x16& a : acc) a = fma(x, y, a);
  }
  f32x16 sum = zero();
  for (const f32x16& a : acc) sum = sum + a;
  store(static_cast<float*>(out), sum);
  return rounds * kChains * 16;
}

// Without VDPBF16PS a product of pairs is two fused multiply-adds; a tile unpacks its operands once
// for many products, so unpacking is left out of the loop.
int64_t probe_bf16(int64_t rounds, const headrace::ProbeOperands& operands, void* out) {
  const i32x16 y = loadi(operands.y);
  f32x16 acc[kChains];
  for (f32x16& a : acc) a = zero();
#ifdef HR_ISA_avx512bf16
  f32x16 x = from_bits(loadi(operands.x));
  for (int64_t i = 0; i < rounds; ++i) {
    opaque(x);
#pragma GCC unroll 32
    for (f32x16& a : acc) a = dot_bf16(a, bits(x), y);
  }
#else
  const i32x16 x = loadi(operands.x), high = splati(static_cast<int32_t>(0xffff0000u));
  const f32x16 odd = from_bits(y & high), even = from_bits(shl<16>(y));
  // One half of the pairs, then the other: both do not fit in the registers of AVX2.
  for (int half = 0; half < 2; ++half) {
    f32x16 x_part = half == 0 ? from_bits(x & high) : from_bits(shl<16>(x));
    const f32x16 y_part = half == 0 ? odd : even;
    for (int64_t i = 0; i < rounds; ++i) {
      opaque(x_part);
#pragma GCC unroll 32
      for (f32x16& a : acc) a = fma(x_part, y_part, a);
    }
  }
#endif
  f32x16 sum = zero();
  for (const f32x16& a : acc) sum = sum + a;
  store(static_cast<float*>(out), sum);
  return rounds * kChains * 32;
}

int64_t probe_int8(int64_t rounds, const headrace::ProbeOperands& operands, void* out) {
  i32x16 x = loadi(operands.x);
  const i32x16 y = loadi(operands.y);
#ifdef HR_AVX512
  __m512i acc[kChains];  // no i32x16: GCC would keep those in memory, or copy them every round
#pragma GCC unroll 32
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x.v));
#pragma GCC unroll 32
    for (__m512i& a : acc) {
      a = _mm512_dpbusd_epi32(a, x.v, y.v);
      asm("" : "+v"(a));
    }
  }
  i32x16 sum = zeroi();
#pragma GCC unroll 32
  for (const __m512i& a : acc) sum = sum + i32x16{a};
  storei(out, sum);
  return rounds * kChains * 64;
#else
  // Products of bytes are summed by pairs in 16 bits, eight at most (8 · 2 · 15 · 127 < 2^15), as
  // the matmul does for 4-bit weights; then once in 32 bits.
  constexpr int kPairChains = 2, kPairSums = 8;
  i32x16 acc[kPairChains];
  for (i32x16& a : acc) a = zeroi();
  for (int64_t i = 0; i < rounds; ++i) {
    i16x32 pairs[kPairChains];
    for (i16x32& p : pairs) p = zero_pairs();
#pragma GCC unroll 8
    for (int j = 0; j < kPairSums; ++j) {
      asm volatile("" : "+x"(x.a), "+x"(x.b));
      for (i16x32& p : pairs) p = dot2(p, x, y);
    }
    for (int c = 0; c < kPairChains; ++c) acc[c] = add_pairs(acc[c], pairs[c], 1);
  }
  storei(out, acc[0] + acc[1]);
  return rounds * kPairChains * kPairSums * 64;
#endif
}

// Four streams: one alone leaves the prefetchers idle at every page's end (up to a third slower).
void probe_read(const std::byte* data, int64_t bytes, uint32_t* out) {
  const int64_t quarter = bytes / 4;
  i32x16 sums[4] = {loadi(out), zeroi(), zeroi(), zeroi()};
  for (int64_t at = 0; at < quarter; at += 128) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const std::byte* line = data + i * quarter + at;
      sums[i] = sums[i] + loadi(line) + loadi(line + 64);
    }
  }
  storei(out, (sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

const headrace::ProbeKernels& probe_kernels() {
  static constexpr headrace::ProbeKernels kernels = {
      .int8 = probe_int8, .bf16 = probe_bf16, .f32 = probe_f32, .read = probe_read};
  return kernels;
}

}  // namespace HR_ISA
