#include "rope_table.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace headrace {

namespace {

constexpr double kMaxAngle = 67108864.0;  // 2^26
constexpr int64_t kFillRows = 256;

// π/2 in three parts. The first two have 25 significant bits, so their products with a
// quadrant number below 2^26 are exact.
constexpr double kPartA = 0x1.921fb5p+0;
constexpr double kPartB = 0x1.110b46p-26;
constexpr double kPartC = 0x1.1a62633145c07p-54;

// Taylor series on |r| ≤ π/4, Horner from the last term; the first neglected term is below 2^-60.
double sine_near_zero(double r) {
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;  // 15!
  s = s * z + 1.0 / 6227020800.0;     // 13!
  s = s * z - 1.0 / 39916800.0;       // 11!
  s = s * z + 1.0 / 362880.0;         // 9!
  s = s * z - 1.0 / 5040.0;           // 7!
  s = s * z + 1.0 / 120.0;            // 5!
  s = s * z - 1.0 / 6.0;              // 3!
  return r + r * (z * s);
}

double cosine_near_zero(double r) {
  const double z = r * r;
  double s = 1.0 / 20922789888000.0;  // 16!
  s = s * z - 1.0 / 87178291200.0;    // 14!
  s = s * z + 1.0 / 479001600.0;      // 12!
  s = s * z - 1.0 / 3628800.0;        // 10!
  s = s * z + 1.0 / 40320.0;          // 8!
  s = s * z - 1.0 / 720.0;            // 6!
  s = s * z + 1.0 / 24.0;             // 4!
  return 1.0 - (0.5 * z - z * (z * s));
}

}  // namespace

void sin_cos(double angle, double* sine, double* cosine) {
  const double quadrant = std::nearbyint(angle * 0x1.45f306dc9c883p-1);  // 2/π
  const double r = ((angle - quadrant * kPartA) - quadrant * kPartB) - quadrant * kPartC;
  const double s = sine_near_zero(r), c = cosine_near_zero(r);
  switch (static_cast<int64_t>(quadrant) & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

RopeTable::RopeTable(std::vector<double> frequencies, int64_t max_positions)
    : frequencies_(std::move(frequencies)), max_positions_(max_positions) {
  if (frequencies_.empty()) throw std::invalid_argument("rope: no frequencies");
  if (max_positions < 1) throw std::invalid_argument("rope: max_positions < 1");
  for (double f : frequencies_)
    if (!(std::fabs(f) * static_cast<double>(max_positions) <= kMaxAngle))
      throw std::invalid_argument("rope: frequency " + std::to_string(f) + " at position " +
                                  std::to_string(max_positions) + " is out of range");
  const int64_t bytes = max_positions * columns() * static_cast<int64_t>(sizeof(float));
  cos_ = Mapping(bytes);
  sin_ = Mapping(bytes);
}

void RopeTable::ensure(int64_t positions) {
  if (positions <= filled_) return;
  if (positions > max_positions_)
    throw std::invalid_argument("rope: position " + std::to_string(positions - 1) +
                                " is beyond the table's " + std::to_string(max_positions_));
  const int64_t end = std::min(max_positions_, (positions + kFillRows - 1) / kFillRows * kFillRows);
  float* cos = reinterpret_cast<float*>(cos_.data()) + filled_ * columns();
  float* sin = reinterpret_cast<float*>(sin_.data()) + filled_ * columns();
  for (int64_t p = filled_; p < end; ++p) {
    for (double frequency : frequencies_) {
      double s, c;
      sin_cos(static_cast<double>(p) * frequency, &s, &c);
      *cos++ = static_cast<float>(c);
      *sin++ = static_cast<float>(s);
    }
  }
  filled_ = end;
}

}  // namespace headrace
