// The sampler's passes over a row of V logits: what a row holds, which ids lie in a range, sums of
// weights. Each reads its inputs once (4 or 8 bytes per id); sums are over sixteen virtual lanes.
// No std:: templates here: a shared copy could carry this level's instructions elsewhere.
#include "kernels/gumbel.h"
#include "sampler_passes.h"
#include "simd.h"

namespace HR_ISA {

using namespace headrace::sampling;

namespace {

constexpr int kLanes = 16;
constexpr float kNever = -__builtin_inff();
constexpr int32_t kInfinityBits = 0x7f800000;  // of a magnitude; above it: NaN

double fold(double* lane) {
  for (int step = kLanes / 2; step > 0; step >>= 1)
    for (int i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
  return lane[0];
}

inline f32x16 load_or_never(const float* p, int64_t n) {
  if (n >= kLanes) return load(p);
  return select(first_lanes(static_cast<int>(n)), load_first(p, static_cast<int>(n)),
                splat(kNever));
}

// The sign bit aside, order of bits is order of magnitude, and NaN is above infinity.
RowScan scan(const float* x, int64_t n, float* block_max) {
  const i32x16 magnitude = splati(0x7fffffff);
  i32x16 widest = zeroi();
  float best = kNever;
  int64_t best_block = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    f32x16 top = splat(kNever), top2 = top;
    if (first + kBlock <= n) {
      for (int64_t i = 0; i < kBlock; i += 2 * kLanes) {
        const f32x16 a = load(x + first + i), b = load(x + first + i + kLanes);
        top = max(a, top);  // a NaN leaves top as it was
        top2 = max(b, top2);
        widest = maxi(widest, maxi(bits(a) & magnitude, bits(b) & magnitude));
      }
    } else {
      for (int64_t i = first; i < n; i += kLanes) {
        const f32x16 a = load_or_never(x + i, n - i);
        top = max(a, top);
        // The lanes past the end are −infinity, which is allowed.
        widest = maxi(widest, bits(a) & magnitude);
      }
    }
    const float highest = tree_max(max(top, top2));
    block_max[first / kBlock] = highest;
    if (highest > best) {
      best = highest;
      best_block = first;
    }
  }
  RowScan result{best, 0, false};
  result.invalid = max_lane(widest) > kInfinityBits || best == -kNever;
  if (best > kNever) {
    result.argmax = best_block;
    while (x[result.argmax] != best) ++result.argmax;
    result.max = x[result.argmax];  // of +0 and −0, the first
  }
  return result;
}

void mask(const float* x, const uint32_t* words, int64_t n, float* out) {
  const f32x16 never = splat(kNever);
  for (int64_t i = 0; i < n; i += kLanes) {
    const uint32_t bits = words[i >> 5] >> (i & 31) & 0xffffu;
    if (i + kLanes > n) {
      const int left = static_cast<int>(n - i);
      store_first(out + i, select(lanes_of(bits), load_first(x + i, left), never), left);
    } else if (bits == 0) {
      store(out + i, never);
    } else {
      store(out + i, select(lanes_of(bits), load(x + i), never));
    }
  }
}

void divide(const float* x, double* z, int64_t n, double t) {
  if (t == 1)
    for (int64_t i = 0; i < n; ++i) z[i] = static_cast<double>(x[i]);
  else
    for (int64_t i = 0; i < n; ++i) z[i] = static_cast<double>(x[i]) / t;
}

// A weight of 0 means a depth below kExpFloor, so the clamp keeps 0 · −infinity out and changes
// nothing else. (Not a choice between 0 and a product: see exp_nonpositive.)
template <bool kDivide, class T>
inline void add_terms(const T* x, int count, double t, double top, double* sum, double* depth) {
  for (int l = 0; l < count; ++l) {
    const double z = kDivide ? static_cast<double>(x[l]) / t : static_cast<double>(x[l]);
    const double d = z - top;
    const double w = exp_nonpositive(d);
    sum[l] = sum[l] + w;
    depth[l] = depth[l] + w * (d < kExpFloor ? kExpFloor : d);
  }
}

template <bool kDivide, class T>
Moments moments(const T* x, int64_t n, double t, double top) {
  double sum[kLanes] = {}, depth[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add_terms<kDivide>(x + i, kLanes, t, top, sum, depth);
  add_terms<kDivide>(x + i, static_cast<int>(n - i), t, top, sum, depth);
  return {fold(sum), fold(depth)};
}

Moments moments_f32(const float* x, int64_t n, double t, double top) {
  return t == 1 ? moments<false>(x, n, t, top) : moments<true>(x, n, t, top);
}
Moments moments_f64(const double* z, int64_t n, double top) { return moments<false>(z, n, 1, top); }

int64_t between(const float* x, int64_t n, const float* block_max, float low, float high,
                int32_t* ids) {
  const f32x16 lowest = splat(low), highest = splat(high);
  int64_t count = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    if (block_max[first / kBlock] < low) continue;
    const int64_t end = first + kBlock < n ? first + kBlock : n;
    for (int64_t i = first; i < end; i += kLanes) {
      const f32x16 a = load_or_never(x + i, end - i);
      uint32_t in = ~(lane_bits(less(a, lowest)) | lane_bits(less(highest, a))) & 0xffffu;
      for (; in != 0; in &= in - 1)
        ids[count++] = static_cast<int32_t>(i) + static_cast<int32_t>(__builtin_ctz(in));
    }
  }
  return count;
}

int64_t rank(const float* x, int64_t n, float than, int64_t id) {
  int64_t above = 0;
  for (int64_t i = 0; i < n; i += 4096) {  // 32-bit counts inside, so that the loop is a vector one
    const int64_t end = i + 4096 < n ? i + 4096 : n;
    int32_t count = 0;
    for (int64_t j = i; j < end; ++j) count += x[j] > than;
    above += count;
  }
  for (int64_t i = 0; i < id; i += 4096) {
    const int64_t end = i + 4096 < id ? i + 4096 : id;
    int32_t count = 0;
    for (int64_t j = i; j < end; ++j) count += x[j] == than;
    above += count;
  }
  return above + 1;
}

void weigh(const Candidate* list, int64_t n, double top, double* w) {
  for (int64_t i = 0; i < n; ++i) w[i] = exp_nonpositive(list[i].logit - top);
}

}  // namespace

const Passes& sampler_passes() {
  static const Passes table{scan,    mask, divide, moments_f32, moments_f64,
                            between, rank, weigh,  draw_row,    draw_list};
  return table;
}

}  // namespace HR_ISA
