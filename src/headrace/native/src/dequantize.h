// Rows of a weight matrix as float32, for embedding gathers.
//
// Equal bit for bit to the GGUF reference dequantiser. Plain scalar code for every instruction set;
// a step reads T rows, so its speed does not matter.
#pragma once

#include <cstdint>

#include "step.h"

namespace headrace {

// out[0 … k-1] ← the row. k is a multiple of the format's block size. False for an unknown format.
bool dequantize_row(Format format, const uint8_t* row, int64_t k, float* out);

}  // namespace headrace
