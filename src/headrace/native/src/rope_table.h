// Cosines and sines of rotary embeddings, in float32 rounded from float64, the same on every
// machine.
#pragma once

#include <vector>

#include "memory.h"

namespace headrace {

// [max_positions, frequencies]; rows are filled when a step first reaches them. The addresses are
// stable. The sine and cosine are our own: the ones of a C library differ between machines.
class RopeTable {
 public:
  // frequencies: radians per position, finite; |frequency| · max_positions ≤ 2^26.
  RopeTable(std::vector<double> frequencies, int64_t max_positions);

  // Fills rows 0 … positions − 1. Throws std::invalid_argument beyond max_positions.
  void ensure(int64_t positions);

  int64_t max_positions() const { return max_positions_; }
  int64_t columns() const { return static_cast<int64_t>(frequencies_.size()); }
  const float* cos() const { return reinterpret_cast<const float*>(cos_.data()); }
  const float* sin() const { return reinterpret_cast<const float*>(sin_.data()); }

 private:
  std::vector<double> frequencies_;
  int64_t max_positions_, filled_ = 0;
  Mapping cos_, sin_;
};

// cos and sin of an angle, |angle| ≤ 2^26, within 2 units in the last place of float64.
void sin_cos(double angle, double* sine, double* cosine);

}  // namespace headrace
