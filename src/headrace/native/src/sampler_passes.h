// The sampler's passes over a whole row, compiled once per instruction set (kernels/sampling.cpp,
// kernels/gumbel.cpp). Every level gives equal bits: element-wise IEEE operations, and sums over
// sixteen virtual lanes (lane = id mod 16) folded by the fixed tree l += l+8, +4, +2, +1.
#pragma once

#include <cstdint>

#include "sampler_math.h"

namespace headrace::sampling {

// Ids of a block share one maximum, so that whole blocks can be passed over.
constexpr int64_t kBlock = 128;
static inline int64_t num_blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }

struct Candidate {
  double logit;
  int32_t id;
};
// The order of every ranked candidate list: logit descending, id ascending.
static inline bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

struct RowScan {
  float max;       // of the numbers, as its lowest id has it; −infinity if there is none
  int64_t argmax;  // lowest id that reaches it; 0 if there is none
  bool invalid;    // a NaN or a +infinity
};

// Over ids in lanes, with depth d = z − top ≤ 0 and w = e^d.
struct Moments {
  double sum;    // Σ w
  double depth;  // Σ w · d, terms with w = 0 left out
};

struct Drawn {
  int64_t id;
  double value;  // logit + noise
};

// x: float32 row [n] of logits, −infinity = not a candidate. block_max: [num_blocks(n)].
struct Passes {
  // Fills block_max.
  RowScan (*scan)(const float* x, int64_t n, float* block_max);
  // out = x where bit id & 31 of word id >> 5 is set, −infinity elsewhere.
  void (*mask)(const float* x, const uint32_t* words, int64_t n, float* out);
  // z = x / t.
  void (*divide)(const float* x, double* z, int64_t n, double t);
  Moments (*moments_f32)(const float* x, int64_t n, double t, double top);  // z = x / t
  Moments (*moments_f64)(const double* z, int64_t n, double top);
  // Ids with low ≤ x ≤ high, ascending; returns how many. low is finite.
  int64_t (*between)(const float* x, int64_t n, const float* block_max, float low, float high,
                     int32_t* ids);
  // 1 + how many of x are above `than` + how many equal it at ids below `id`.
  int64_t (*rank)(const float* x, int64_t n, float than, int64_t id);
  // w = e^(logit − top), one by one.
  void (*weigh)(const Candidate* list, int64_t n, double top, double* w);
  // argmax of x / t + noise, ties to the lowest id, given one candidate to beat. The same over a
  // list in any order.
  Drawn (*draw_row)(const float* x, int64_t n, const float* block_max, double t, const Noise& noise,
                    Drawn best);
  Drawn (*draw_list)(const Candidate* list, int64_t n, const Noise& noise, Drawn best);
};

}  // namespace headrace::sampling

namespace avx2 {
const headrace::sampling::Passes& sampler_passes();
}
namespace avx512 {
const headrace::sampling::Passes& sampler_passes();
}
namespace avx512bf16 {
const headrace::sampling::Passes& sampler_passes();
}
