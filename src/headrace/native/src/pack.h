// Repacks weights from file rows to panels of 16 output rows (layouts: matmul.h), once at load.
#pragma once

#include <cstdint>

#include "memory.h"
#include "step.h"

namespace headrace {

// An owned PackedMatrix. `view` stays valid as long as this object; where it lies in a mapped file,
// `memory` is empty and the binding keeps the file.
struct PackedWeights {
  Mapping memory;
  PackedMatrix view;
};

// data: n rows of file_row_bytes(format, k), only read. Row i of the result is stored row
// row_order[i] (0 … n−1; nullptr: i). k must be a multiple of geometry(format).k. `threads` ≥ 1.
// Throws std::bad_alloc; checks no argument (the binding does).
PackedWeights pack(Format format, const uint8_t* data, int64_t n, int64_t k,
                   const int32_t* row_order, int threads);

}  // namespace headrace
