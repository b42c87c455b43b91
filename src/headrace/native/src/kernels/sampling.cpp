// The sampler's passes over a row of V logits. Plain loops over sixteen virtual lanes that the
// compiler turns into vectors; each reads its inputs once (4 or 8 bytes per id).
//
// The draw needs argmax(z + noise) over the whole vocabulary but computes the two logarithms for a
// handful of ids only. Two bounds, both above the noise that would be computed, skip the rest:
//   a group of 32 ids whose largest z + 22.9 cannot win needs no random words;
//   an id needs no logarithm when z + B(word) cannot win, where
//   −ln(−ln u) ≤ −ln(1 − u) ≤ B = ln 2 · (31 − log₂ of the word's complement, rounded down).
// No std:: templates here: a shared copy could carry this level's instructions elsewhere.
#include <limits>

#include "sampler_passes.h"

namespace HR_ISA {

using namespace headrace::sampling;

namespace {

constexpr int kLanes = 16;
constexpr int kGroup = 32;  // ids whose noise is made together: 8 Philox counters of 4 words

double fold(double* lane) {
  for (int step = kLanes / 2; step > 0; step >>= 1)
    for (int i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
  return lane[0];
}

double highest(const double* x, int n) {
  double top = x[0];
  for (int i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

RowScan scan(const float* x, int64_t n) {
  const float lowest = -std::numeric_limits<float>::infinity();
  float top[kLanes];
  int32_t odd[kLanes] = {};
  for (int l = 0; l < kLanes; ++l) top[l] = lowest;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      const float v = x[i + l];
      top[l] = v > top[l] ? v : top[l];
      odd[l] |= v != v;
    }
  for (int l = 0; i < n; ++i, ++l) {
    top[l] = x[i] > top[l] ? x[i] : top[l];
    odd[l] |= x[i] != x[i];
  }
  RowScan result{lowest, 0, false};
  for (int l = 0; l < kLanes; ++l) {
    result.max = top[l] > result.max ? top[l] : result.max;
    result.invalid |= odd[l] != 0;
  }
  result.invalid |= result.max == std::numeric_limits<float>::infinity();
  if (result.max > lowest)
    while (x[result.argmax] != result.max) ++result.argmax;
  return result;
}

void widen(const float* x, double* z, int64_t n) {
  for (int64_t i = 0; i < n; ++i) z[i] = static_cast<double>(x[i]);
}

void divide(double* z, int64_t n, double by) {
  for (int64_t i = 0; i < n; ++i) z[i] = z[i] / by;
}

double max(const double* z, int64_t n) {
  double top[kLanes];
  for (int l = 0; l < kLanes; ++l) top[l] = -std::numeric_limits<double>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) top[l] = z[i + l] > top[l] ? z[i + l] : top[l];
  for (int l = 0; i < n; ++i, ++l) top[l] = z[i] > top[l] ? z[i] : top[l];
  return highest(top, kLanes);
}

double sum_exp_f32(const float* x, int64_t n, double m) {
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l)
      lane[l] = lane[l] + exp_nonpositive(static_cast<double>(x[i + l]) - m);
  for (int l = 0; i < n; ++i, ++l)
    lane[l] = lane[l] + exp_nonpositive(static_cast<double>(x[i]) - m);
  return fold(lane);
}

double weights(const double* z, double* w, int64_t n, double m) {
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      w[i + l] = exp_nonpositive(z[i + l] - m);
      lane[l] = lane[l] + w[i + l];
    }
  for (int l = 0; i < n; ++i, ++l) {
    w[i] = exp_nonpositive(z[i] - m);
    lane[l] = lane[l] + w[i];
  }
  return fold(lane);
}

// A weight of 0 means a depth below kExpFloor, so the clamp keeps 0 · −infinity out and changes
// nothing else. (Not a choice between 0 and a product: see exp_nonpositive.)
double weighted_depth(const double* z, const double* w, int64_t n, double m) {
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      const double depth = z[i + l] - m;
      lane[l] = lane[l] + w[i + l] * (depth < kExpFloor ? kExpFloor : depth);
    }
  for (int l = 0; i < n; ++i, ++l) {
    const double depth = z[i] - m;
    lane[l] = lane[l] + w[i] * (depth < kExpFloor ? kExpFloor : depth);
  }
  return fold(lane);
}

int64_t rank(const float* x, int64_t n, float than, int64_t id) {
  int64_t above = 0;
  for (int64_t i = 0; i < n; i += 4096) {  // 32-bit counts inside, so that the loop is a vector one
    const int64_t end = i + 4096 < n ? i + 4096 : n;
    int32_t count = 0;
    for (int64_t j = i; j < end; ++j) count += x[j] > than;
    above += count;
  }
  for (int64_t i = 0; i < id; ++i) above += x[i] == than;
  return above + 1;
}

// The random words of ids first … first + 31; first is a multiple of 32.
void group_words(const Noise& noise, int64_t first, uint32_t words[kGroup]) {
  constexpr int kCounters = kGroup / 4;
  uint32_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
  for (int j = 0; j < kCounters; ++j) {
    c0[j] = static_cast<uint32_t>(first >> 2) + static_cast<uint32_t>(j);
    c1[j] = noise.position;
    c2[j] = noise.sample_index;
    c3[j] = noise.purpose;
  }
  uint32_t k0 = static_cast<uint32_t>(noise.seed), k1 = static_cast<uint32_t>(noise.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < kCounters; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[j], p1 = uint64_t{0xCD9E8D57u} * c2[j];
      c0[j] = static_cast<uint32_t>(p1 >> 32) ^ c1[j] ^ k0;
      c1[j] = static_cast<uint32_t>(p1);
      c2[j] = static_cast<uint32_t>(p0 >> 32) ^ c3[j] ^ k1;
      c3[j] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < kCounters; ++j) {
    words[4 * j] = c0[j], words[4 * j + 1] = c1[j];
    words[4 * j + 2] = c2[j], words[4 * j + 3] = c3[j];
  }
}

// At or above gumbel(word). The float bits of v, divided by 2²³, minus 127, are at or below log₂ v.
inline double noise_bound(uint32_t word) {
  const int32_t v = static_cast<int32_t>(~word >> 1) & ~0x7f;  // 24 bits: exact as a float
  const float f = static_cast<float>(v);
  int32_t bits;
  std::memcpy(&bits, &f, 4);
  constexpr double kLn2 = 0.6931471805599453;
  return (31.0 + 127.0) * kLn2 - static_cast<double>(bits) * (kLn2 / 8388608.0) + 1e-6;
}

void consider(Drawn& best, int64_t id, double value) {
  if (value > best.value || (value == best.value && id < best.id)) best = {id, value};
}

Drawn draw(const double* z, int64_t n, const Noise& noise, Drawn best) {
  uint32_t words[kGroup];
  int64_t first = 0;
  for (; first + kGroup <= n; first += kGroup) {
    const double* group = z + first;
    double top[8];
    for (int l = 0; l < 8; ++l) top[l] = group[l];
    for (int i = 8; i < kGroup; i += 8)
      for (int l = 0; l < 8; ++l) top[l] = group[i + l] > top[l] ? group[i + l] : top[l];
    if (highest(top, 8) + kMaxGumbel < best.value) continue;
    group_words(noise, first, words);
    int32_t hit[kGroup], any = 0;
    for (int i = 0; i < kGroup; ++i) {
      hit[i] = group[i] + noise_bound(words[i]) >= best.value;
      any |= hit[i];
    }
    if (!any) continue;
    for (int i = 0; i < kGroup; ++i)
      if (hit[i]) consider(best, first + i, group[i] + gumbel(words[i]));
  }
  for (; first < n; ++first)
    if (z[first] + kMaxGumbel >= best.value)
      consider(best, first, z[first] + noise_at(noise, first));
  return best;
}

}  // namespace

const Passes& sampler_passes() {
  static const Passes table{scan,    widen,          divide, max, sum_exp_f32,
                            weights, weighted_depth, rank,   draw};
  return table;
}

}  // namespace HR_ISA
