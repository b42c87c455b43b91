// A weight matrix repacked for the matmul kernels, with the memory it lies in.
#pragma once

#include "memory.h"
#include "step.h"

namespace headrace {

// What _core.pack returns (bound in bind_matmul.cpp) and Program's matmul takes. Immutable.
struct PackedWeight {
  PackedMatrix matrix;
  Mapping memory;
};

}  // namespace headrace
