// The sampler's own arithmetic: float64, no fused multiply-add, no library functions, so that every
// compiler, instruction set and interpreter gives equal bits. docs/sampling.md states the same
// operations in words; tests/engine/sampler_oracle.py repeats them in plain Python. `static`: every
// file keeps its own copy, so that code compiled for a wider instruction set is never shared.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace::sampling {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 6.93147180369123816490e-01;  // the low 32 bits are zero
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kRoundMagic = 6755399441055744.0;  // 1.5 · 2⁵²
constexpr double kExpFloor = -708.0;                // exp below this is defined as 0

static inline uint64_t to_bits(double x) {
  uint64_t b;
  std::memcpy(&b, &x, 8);
  return b;
}
static inline double from_bits(uint64_t b) {
  double x;
  std::memcpy(&x, &b, 8);
  return x;
}

// e^x for x ≤ 0 (−infinity gives 0), within 1 unit in the last place. x = k·ln 2 + r, |r| ≤ 0.347;
// e^r by its Taylor series to r¹³ (remainder 4·10⁻¹⁸), Horner form.
static inline double exp_nonpositive(double x) {
  const double y = x < kExpFloor ? kExpFloor : x;
  const double t = y * kLog2E + kRoundMagic;
  const double k = t - kRoundMagic;
  const double r = (y - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // 2^k: t's low bits hold k. The zero is chosen here and not after the product, because GCC 12 at
  // AVX-512 can turn a choice between 0 and a product into a wrong masked product.
  const double scale = x < kExpFloor ? 0.0 : from_bits((to_bits(t) + 1023) << 52);
  return p * scale;
}

// ln x for normal x > 0, within 2 units in the last place. x = 2^e · m, √½ < m ≤ √2;
// s = (m − 1) / (m + 1); ln m = 2s · (1 + s²/3 + s⁴/5 + … + s²⁰/21).
static inline double natural_log(double x) {
  uint64_t bits = to_bits(x);
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  double m = from_bits((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    e += 1;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  double p = 1.0 / 21.0;
  p = p * q + 1.0 / 19.0;
  p = p * q + 1.0 / 17.0;
  p = p * q + 1.0 / 15.0;
  p = p * q + 1.0 / 13.0;
  p = p * q + 1.0 / 11.0;
  p = p * q + 1.0 / 9.0;
  p = p * q + 1.0 / 7.0;
  p = p * q + 1.0 / 5.0;
  p = p * q + 1.0 / 3.0;
  const double k = static_cast<double>(e);
  const double two_s = s + s;
  return k * kLn2High + (two_s + (two_s * (q * p) + k * kLn2Low));
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): counter[4] → out[4] under a 64-bit key.
static inline void philox(const uint32_t counter[4], uint64_t key, uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// The standard Gumbel variable of a random word: −ln(−ln u), u = (word + ½) / 2³². −3.14 … 22.88.
static inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -natural_log(-natural_log(u));
}
constexpr double kMaxGumbel = 22.9;

// What a random number is for: the last counter word. Streams are independent of each other.
enum class Stream : uint32_t { Draw = 0, Draft = 1, Acceptance = 2, Residual = 3 };

// Where noise comes from: one key and the three counter words beside the id's.
struct Noise {
  uint64_t seed;
  uint32_t position, sample_index, purpose;

  Noise on(Stream stream) const {
    return {seed, position, sample_index, static_cast<uint32_t>(stream)};
  }
};

// The noise of one id: word id mod 4 of the counter (id / 4, position, sample index, purpose).
static inline double noise_at(const Noise& noise, int64_t id) {
  const uint32_t counter[4] = {static_cast<uint32_t>(id >> 2), noise.position, noise.sample_index,
                               noise.purpose};
  uint32_t words[4];
  philox(counter, noise.seed, words);
  return gumbel(words[id & 3]);
}

// One uniform number per position and purpose, (k + ½) / 2⁵² with k from the first two words of the
// counter (0, position, sample index, purpose): never 0 or 1.
static inline double uniform_at(const Noise& noise) {
  const uint32_t counter[4] = {0, noise.position, noise.sample_index, noise.purpose};
  uint32_t words[4];
  philox(counter, noise.seed, words);
  const uint64_t k = uint64_t{words[0]} << 20 | words[1] >> 12;
  return (static_cast<double>(k) + 0.5) * 0x1p-52;
}

}  // namespace headrace::sampling
