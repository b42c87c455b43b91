#include "quantize.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "dequantize.h"
#include "matmul.h"

namespace headrace {

namespace {

// Largest magnitude as the bits of a float; infinities and NaNs are those with an exponent of all
// ones.
uint32_t largest(const float* x, int64_t n) {
  uint32_t worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    worst = std::max(worst, bits & 0x7fffffffu);
  }
  return worst;
}
constexpr uint32_t kInfinity = 0x7f800000u;
// 2^15: below, no format's scale or minimum leaves float16.
constexpr uint32_t kHarmless = 0x47000000u;

}  // namespace

Quantized quantize(Format from, const uint8_t* data, int64_t n, int64_t k, Format to, uint8_t* out,
                   const KernelTable& kernels, int threads) {
  const int64_t from_bytes = file_row_bytes(from, k), to_bytes = file_row_bytes(to, k);
  std::atomic<Quantized> result{Quantized::Done};
  auto work = [&](int64_t first, int64_t last) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = first; i < last && result == Quantized::Done; ++i) {
      dequantize_row(from, data + i * from_bytes, k, row.data());
      const uint32_t worst = largest(row.data(), k);
      if (worst >= kInfinity) {
        result = Quantized::NotFinite;
      } else if (!kernels.quantize_row(to, row.data(), k, out + i * to_bytes)) {
        result = Quantized::NoQuantiser;
      } else if (worst >= kHarmless) {
        dequantize_row(to, out + i * to_bytes, k, row.data());
        if (largest(row.data(), k) >= kInfinity) result = Quantized::TooLarge;
      }
    }
  };
  const int64_t useful = std::min<int64_t>(threads, (n * k >> 18) + 1);
  std::vector<std::thread> others;
  for (int64_t t = 1; t < useful; ++t)
    others.emplace_back(work, n * t / useful, n * (t + 1) / useful);
  work(0, n / useful);
  for (std::thread& thread : others) thread.join();
  return result;
}

}  // namespace headrace
