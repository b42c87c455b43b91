// Rows of one number format → rows of a smaller one, at load.
#pragma once

#include <cstdint>

#include "step.h"

namespace headrace {

// TooLarge: a scale or minimum is beyond float16.
enum class Quantized { Done, NoQuantiser, NotFinite, TooLarge };

// data: n rows of file_row_bytes(from, k), only read; out: n rows of file_row_bytes(to, k). k must
// be a multiple of both formats' geometry().k. Equal bytes on every level and for any number of
// threads (≥ 1). Not done: `out` holds rubbish. Checks no other argument (the binding does).
Quantized quantize(Format from, const uint8_t* data, int64_t n, int64_t k, Format to, uint8_t* out,
                   const KernelTable& kernels, int threads);

}  // namespace headrace
