// headrace.native._core: the Python module. Errors: ValueError for a bad argument (the message
// names it), RuntimeError where this machine cannot run the core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "dispatch.h"

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  using namespace headrace;
  m.doc() = "Headrace's native core: kernels, step programs, sampling.";
  m.def("available_isas", &available_isas,
        "Instruction-set levels this CPU and OS can run, lowest first; empty without AVX2.");
  m.def(
      "choose_isa",
      [](std::optional<std::string> isa) { return std::string(choose_kernels(isa).isa); },
      nb::arg("isa") = nb::none(),
      "The level kernels run at: `isa`, else HEADRACE_ISA, else the best available.");
  register_program(m);
  register_matmul(m);
  register_kernels(m);
  register_sampler(m);
  register_probe(m);
}
