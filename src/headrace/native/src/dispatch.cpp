#include "dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace headrace {

std::vector<std::string> available_isas() {
  // __builtin_cpu_supports also asks XGETBV whether the OS saves the wide registers.
  __builtin_cpu_init();
  std::vector<std::string> isas;
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2")))
    return isas;
  isas.push_back("avx2");
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")))
    return isas;
  isas.push_back("avx512");
  if (__builtin_cpu_supports("avx512bf16")) isas.push_back("avx512bf16");
  return isas;
}

const KernelTable& choose_kernels(const std::optional<std::string>& isa) {
  const std::vector<std::string> available = available_isas();
  if (available.empty())
    throw std::runtime_error(
        "the native core needs a CPU with AVX2, FMA, F16C and BMI2, which this one lacks");
  std::string name = available.back();
  std::string source = "isa";
  if (isa) {
    name = *isa;
  } else if (const char* forced = std::getenv("HEADRACE_ISA"); forced != nullptr) {
    name = forced;
    source = "HEADRACE_ISA";
  }
  if (std::find(available.begin(), available.end(), name) == available.end()) {
    std::string allowed;
    for (const std::string& level : available) allowed += (allowed.empty() ? "" : ", ") + level;
    throw std::invalid_argument(source + "='" + name +
                                "' is not a level this CPU runs; allowed: " + allowed);
  }
  if (name == "avx512bf16") return avx512bf16::kernels();
  if (name == "avx512") return avx512::kernels();
  return avx2::kernels();
}

}  // namespace headrace
