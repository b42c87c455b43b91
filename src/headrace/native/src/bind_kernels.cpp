#include <nanobind/nanobind.h>

#include "bind.h"

namespace headrace {

void register_kernels(nb::module_& m) { (void)m; }

}  // namespace headrace
