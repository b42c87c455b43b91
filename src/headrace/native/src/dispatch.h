// Which kernels run here: CPUID, the operating system's support, and HEADRACE_ISA.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "step.h"

namespace headrace {

// Levels this CPU and OS can run, lowest first: avx2, avx512, avx512bf16. Empty without AVX2.
std::vector<std::string> available_isas();

// The kernels of level `isa`; without one, of HEADRACE_ISA; without that, of the best level. Levels
// give equal bits (docs/numerics.md). Throws std::invalid_argument for an unknown or unavailable
// level and std::runtime_error on a CPU without AVX2, FMA and F16C.
const KernelTable& choose_kernels(const std::optional<std::string>& isa);

}  // namespace headrace
