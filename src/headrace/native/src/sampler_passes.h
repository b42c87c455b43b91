// The sampler's passes over a whole row, compiled once per instruction set (kernels/sampling.cpp).
// Every level gives equal bits: element-wise IEEE operations, and sums over sixteen virtual lanes
// (lane = id mod 16) folded by the fixed tree l += l+8, +4, +2, +1.
#pragma once

#include <cstdint>

#include "sampler_math.h"

namespace headrace::sampling {

struct RowScan {
  float max;       // of the numbers; −infinity if there is none
  int64_t argmax;  // lowest id that reaches it; 0 if there is none
  bool invalid;    // a NaN or a +infinity
};

struct Drawn {
  int64_t id;
  double value;  // logit + noise
};

struct Passes {
  RowScan (*scan)(const float* x, int64_t n);
  void (*widen)(const float* x, double* z, int64_t n);
  void (*divide)(double* z, int64_t n, double by);
  double (*max)(const double* z, int64_t n);
  // Σ e^(x − m) over lanes.
  double (*sum_exp_f32)(const float* x, int64_t n, double m);
  // w = e^(z − m); returns Σ w over lanes.
  double (*weights)(const double* z, double* w, int64_t n, double m);
  // Σ w · (z − m) over lanes, terms with w = 0 left out.
  double (*weighted_depth)(const double* z, const double* w, int64_t n, double m);
  // How many of x are above `than`, plus how many equal it at ids below `id`.
  int64_t (*rank)(const float* x, int64_t n, float than, int64_t id);
  // argmax over ids 0 … n−1 of z + noise, ties to the lowest id, given one candidate to beat.
  Drawn (*draw)(const double* z, int64_t n, const Noise& noise, Drawn best);
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
